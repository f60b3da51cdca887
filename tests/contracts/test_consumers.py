"""Consumers against producers, both ways: what one promises and what the other counts on are two models, compared here.

This is the one place where a test may look at a producer's class and at a consumer's model of it together.
"""

from __future__ import annotations

import inspect
from datetime import date
from typing import Final

import pytest
from pydantic import BaseModel, create_model

from spectral.core.contracts import check_consumer, check_consumers, check_succession, tell_problem
from spectral.core.events.consumer import Handler
from spectral.platform.contracts.protocols.failure_samples import FailureSamples
from spectral.platform.infrastructure.failures import PostgresFailureSamples
from spectral.worlds.domain.rules import FailureEvidence
from spectral_workers import event_consumers
from tests.contracts.promises import CONSUMERS, contracts

# Who handles what, by hand: an event that nobody wants any more, or a new one that nobody hears, is seen here.
EXPECTED: Final = {
    ("worlds.world_model_card.published", "platform.world_model_card_projection"),
    ("worlds.scan.completed", "worlds.scan_completed_indexer"),
    ("worlds.curation.applied", "platform.curation_applied_closer"),
    ("platform.failure_cluster.detected", "worlds.failure_cluster_rule_proposer"),
    ("platform.decision.recorded", "platform.decision_recorded_aggregator"),
    ("platform.curation.approved", "worlds.curation_approved_applier"),
    ("agent.task.dispatched", "platform.run_agent_task"),
    ("platform.agent_task.resumed", "platform.run_agent_task"),
}
HANDLERS: Final = sorted(
    (event_type, handler.name, handler)
    for consumer in CONSUMERS
    for event_type in consumer.event_types
    for handler in consumer.handlers_of(event_type)
)
BUILDERS: Final = sorted(name for name in vars(event_consumers) if name.startswith("build_"))


def model_of(handler: Handler) -> type[BaseModel]:
    assert handler.signature.model is not None
    return handler.signature.model


def test_these_handlers_handle_these_events() -> None:
    assert {(event_type, name) for event_type, name, _ in HANDLERS} == EXPECTED


def test_every_handler_fits_what_the_producers_promise() -> None:
    assert [tell_problem(each) for each in check_consumers(contracts(), CONSUMERS)] == []


def test_every_type_that_is_to_go_has_a_successor_and_a_deadline() -> None:
    # That a deadline has passed is for `catalog check` to say, not for a test that passed yesterday.
    assert check_succession(contracts(), today=date.min) == []


@pytest.mark.parametrize(("event_type", "name", "handler"), HANDLERS, ids=lambda value: str(value)[:60])
def test_every_example_is_read_and_unknown_fields_are_ignored(event_type: str, name: str, handler: Handler) -> None:
    model = model_of(handler)
    for example in contracts()[event_type].examples:
        read = model.model_validate(example)
        assert model.model_validate({**example, "added_later": {"by": ["the producer"]}}) == read
        # What the consumer has read says the same as what the producer wrote.
        told = read.model_dump(mode="json")
        assert told == {field: example[field] for field in told}, name


@pytest.mark.parametrize(("event_type", "name", "handler"), HANDLERS, ids=lambda value: str(value)[:60])
def test_a_field_that_a_handler_needs_and_nobody_writes_is_a_problem(
    event_type: str, name: str, handler: Handler
) -> None:
    wants_more = create_model("WantsMoreEvent", __base__=model_of(handler), nobody_writes_this=(int, ...))
    (problem,) = check_consumer(name, wants_more, contracts()[event_type])
    assert (problem.handler, problem.event_type, problem.path) == (name, event_type, "nobody_writes_this")


@pytest.mark.parametrize(("event_type", "name", "handler"), HANDLERS, ids=lambda value: str(value)[:60])
def test_a_consumer_has_a_model_of_its_own(event_type: str, name: str, handler: Handler) -> None:
    model, contract = model_of(handler), contracts()[event_type]
    context = name.partition(".")[0]
    assert model.__module__.startswith(f"spectral.{context}.")
    assert ".contracts." not in model.__module__
    assert not issubclass(model, contract.payload)
    assert model.__name__.endswith("Event")


def test_the_consumers_of_a_worker_are_made_of_the_handlers_of_the_builders() -> None:
    assert "build_world_model_card_projection_consumer" in BUILDERS
    whole = {
        "build_platform_consumer",
        "build_worlds_consumer",
        "build_agent_task_consumer",
        "build_declared_consumers",
    }
    assert whole < set(BUILDERS)
    built = [getattr(event_consumers, name)() for name in BUILDERS if name not in whole]
    names = {handler.name for consumer in built for handler in consumer.handlers}
    run = (event_consumers.platform, event_consumers.worlds)
    assert names == {handler.name for consumer in run for handler in consumer.handlers}


def test_the_callee_answers_what_the_caller_asks() -> None:
    """The port of worlds and the protocol of platform know nothing of each other; an app puts one into the other."""
    asked = inspect.signature(FailureEvidence.samples_of, eval_str=False)
    promised = inspect.signature(FailureSamples.samples_of, eval_str=False)
    given = inspect.signature(PostgresFailureSamples.samples_of, eval_str=False)
    assert list(asked.parameters) == list(promised.parameters) == list(given.parameters)
    for name, parameter in asked.parameters.items():
        assert parameter.kind is promised.parameters[name].kind is given.parameters[name].kind
        assert parameter.default is promised.parameters[name].default is given.parameters[name].default
