"""Where the contexts meet: consumers are built here, and ports of one context are filled with protocols of another.

A worker runs both contexts, or one of them:
`spectral worker spectral_workers.event_consumers:platform spectral_workers.event_consumers:worlds`.

A context's handlers belong to one `Consumer`, for whoever claims a row settles it. The builders of single handlers are
for tests and for workers of a deployment of their own; `platform` and `worlds` are whole. Only agent tasks are missing:
what runs those is the project's own, so it builds its consumer of platform with `build_agent_task_consumer`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from spectral.core.events import Consumer, DatabaseSettings
from spectral.platform.agent_tasks import TaskOptions, handle_agent_tasks
from spectral.platform.infrastructure.events import curation_applied, decision_recorded, world_model_card_published
from spectral.platform.infrastructure.failures import PostgresFailureSamples
from spectral.worlds.infrastructure.events import curation_approved, failure_cluster_detected, scan_completed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.platform.agent_tasks import AgentTask, Executor, TaskRun
    from spectral.platform.contracts.protocols.failure_samples import FailureSamples

PLATFORM_DATABASE_VARIABLE: Final = "SPECTRAL_PLATFORM_DATABASE_URL"
"""By which connection, with a login of platform's, the worker of worlds asks platform; by its own if unset."""


def build_world_model_card_projection_consumer() -> Consumer:
    """Platform, projecting the cards of worlds into System Card snapshots."""
    consumer = Consumer("platform")
    world_model_card_published.register(consumer)
    return consumer


def build_decision_aggregation_consumer() -> Consumer:
    """Platform, counting decisions."""
    consumer = Consumer("platform")
    decision_recorded.register(consumer)
    return consumer


def build_curation_closing_consumer() -> Consumer:
    """Platform, closing curations that worlds has answered."""
    consumer = Consumer("platform")
    curation_applied.register(consumer)
    return consumer


def build_scan_indexing_consumer() -> Consumer:
    """Worlds, indexing its scans."""
    consumer = Consumer("worlds")
    scan_completed.register(consumer)
    return consumer


def build_rule_proposing_consumer(samples: FailureSamples | None = None) -> Consumer:
    """Worlds, proposing rules for clusters of failures, with samples that platform answers."""
    consumer = Consumer("worlds")
    failure_cluster_detected.register(consumer, samples or _failure_samples())
    return consumer


def build_curation_applying_consumer() -> Consumer:
    """Worlds, making rules of approved curations and answering."""
    consumer = Consumer("worlds")
    curation_approved.register(consumer)
    return consumer


def build_platform_consumer() -> Consumer:
    """All of platform."""
    consumer = Consumer("platform")
    world_model_card_published.register(consumer)
    decision_recorded.register(consumer)
    curation_applied.register(consumer)
    return consumer


def build_agent_task_consumer(executor: Executor, options: TaskOptions | None = None) -> Consumer:
    """All of platform, running agent tasks too. What an agent is, is the project's to say: give it the executor.

    Raises:
        ConfigurationError: there are no options, and the environment names no database.
    """
    consumer = build_platform_consumer()
    handle_agent_tasks(consumer, executor, options or TaskOptions(database=DatabaseSettings.from_environ(_environ())))
    return consumer


def build_worlds_consumer(samples: FailureSamples | None = None) -> Consumer:
    """All of worlds; without samples of its own it asks platform's database."""
    consumer = Consumer("worlds")
    scan_completed.register(consumer)
    failure_cluster_detected.register(consumer, samples or _failure_samples())
    curation_approved.register(consumer)
    return consumer


def build_declared_consumers() -> tuple[Consumer, ...]:
    """Every handler of both contexts, to be looked at and never run: what the catalogue and its checks know.

    Agent tasks are among them, with nobody to run one, and a database that is never asked.
    """
    options = TaskOptions(database=DatabaseSettings(dsn="dbname=nowhere"))
    return build_agent_task_consumer(_refuse_task, options), build_worlds_consumer()


async def _refuse_task(task: AgentTask, run: TaskRun) -> None:
    # Not an open end: which executor runs tasks is the project's to say, and nobody may run them with none.
    raise NotImplementedError("this consumer is only looked at; give build_agent_task_consumer an executor")


def _failure_samples() -> FailureSamples:
    return PostgresFailureSamples(_platform_dsn)


def _platform_dsn() -> str:
    """Read when it is needed: importing this module needs no database."""
    return _environ().get(PLATFORM_DATABASE_VARIABLE) or DatabaseSettings.from_environ(_environ()).dsn


def _environ() -> Mapping[str, str]:
    return os.environ  # noqa: TID251  this is the top of a worker process


platform = build_platform_consumer()
worlds = build_worlds_consumer()
