"""The verdict: from one look to words, without a database."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from spectral.core.events.settings import WorkerTimes
from spectral.core.operations.insights import Amount, Backlog, Brake, Deployment, Holder, Lane, Snapshot, Stray, Worker
from spectral.core.operations.insights_rates import rates
from spectral.core.operations.insights_values import COUNT_CAP, Relaying, Table
from spectral.core.operations.verdict import Finding, Level, Limits, Verdict, judge
from spectral.core.operations.verdict_rules import delivery_findings
from spectral.core.operations.verdict_words import GIVEN_UP, several, spoken

NOW = datetime(2026, 3, 1, 3, 0, tzinfo=UTC)


def worker(
    name: str = "w1", *, alive: bool = True, generation: int = 7, contexts: tuple[str, ...] = ("platform",)
) -> Worker:
    return Worker(
        name=name,
        generation=generation,
        generations=(generation,),
        contexts=contexts,
        channels=(f"outbox_gen_{generation}", "outbox_default"),
        host="box",
        pid=4711,
        version="0.1",
        signed_in_at=NOW - timedelta(hours=1),
        alive=alive,
    )


def backlog(context: str | None = "platform", **changes: Any) -> Backlog:  # noqa: ANN401  fields by name
    return replace(Backlog(context, 7, "live"), **changes)


def lane(context: str | None = "platform", channel: str = "outbox_gen_7", *, age: float = 1) -> Lane:
    return Lane(7, "live", channel, context, Amount(5), Amount(), timedelta(seconds=age), None)


def look(**changes: Any) -> Snapshot:  # noqa: ANN401  fields by name
    """A look at a system in which generation 7 is live, one worker runs, and nothing waits."""
    quiet = Snapshot(
        taken_at=NOW,
        login="ops",
        activity_visible=True,
        live_generation=7,
        deployments=(Deployment(7, "live", None, NOW, None),),
        workers=(worker(),),
    )
    return replace(quiet, **changes)


def waiting(seconds: float, context: str | None = "platform", due: int = 120) -> Backlog:
    return backlog(context, due=Amount(due), oldest_due=timedelta(seconds=seconds))


def told(verdict: Verdict) -> str:
    return "\n".join(each.text for each in verdict.sentences)


def test_idle_is_one_sentence_and_ok() -> None:
    verdict = judge(look())
    assert (verdict.level, told(verdict)) == (Level.OK, "Idle: 1 worker of generation 7, nothing waits.")


def test_delivering_says_how_much() -> None:
    busy = backlog(due=Amount(3), in_flight=Amount(2), waiting=Amount(1), oldest_due=timedelta(seconds=1))
    verdict = judge(look(backlogs=(busy,), lanes=(lane(),)))
    assert verdict.level is Level.OK
    assert told(verdict) == "Delivering: 1 worker of generation 7, 3 events wait, 2 in flight, 1 due later."


def test_a_broker_in_between_is_worth_a_sentence() -> None:
    verdict = judge(look(relaying=Relaying("nats", 2)))
    assert verdict.level is Level.OK
    assert verdict.sentences[-1].text == "Workers take events from nats; 2 relays are alive."
    assert "postgres" not in told(judge(look(relaying=Relaying("postgres", 2))))


def test_a_broker_to_which_nobody_sends_needs_attention() -> None:
    verdict = judge(look(relaying=Relaying("redis", 0)))
    assert verdict.level is Level.ATTENTION
    assert "no relay is alive that sends them there" in told(verdict)


def test_down_with_nothing_waiting_needs_attention_only() -> None:
    verdict = judge(look(workers=()))
    assert verdict.level is Level.ATTENTION
    assert told(verdict) == "Down: no worker is alive; nothing waits.\nGeneration 7 is live and has no worker."


@pytest.mark.parametrize(("age", "level"), [(5, Level.ATTENTION), (240, Level.UNHEALTHY)])
def test_down_with_events_waiting_names_the_context_and_the_command(age: float, level: Level) -> None:
    verdict = judge(look(workers=(worker(alive=False),), backlogs=(waiting(age),), lanes=(lane(age=age),)))
    assert verdict.level is level
    assert verdict.sentences[0].text == "Down: no worker is alive; 120 events wait."
    assert verdict.sentences[1].text == (
        f"platform has 120 events waiting, the oldest for {spoken(timedelta(seconds=age))}, "
        "and no worker of generation 7 is alive for it (1 worker vanished)."
    )
    assert verdict.sentences[1].command == "SPECTRAL_GENERATION=7 spectral worker <module>:<consumer>"


def test_a_worker_of_another_context_does_not_count() -> None:
    verdict = judge(look(workers=(worker(contexts=("worlds",)),), backlogs=(waiting(240),), lanes=(lane(),)))
    assert verdict.sentences[0].text.startswith("Held up: 1 worker of generation 7")
    assert verdict.level is Level.UNHEALTHY


def test_braked_is_told_from_down() -> None:
    brake = Brake("*", NOW - timedelta(minutes=5), "dana", "billing is down")
    verdict = judge(look(brakes=(brake,), backlogs=(waiting(240),), lanes=(lane(),)))
    assert verdict.level is Level.ATTENTION
    assert verdict.sentences[0].text.startswith("Braked: 1 worker of generation 7, 120 events wait")
    assert verdict.sentences[1].text == "Every context is braked, by dana 5 min ago (billing is down); 120 events wait."
    assert verdict.sentences[1].command == "spectral brake off --all"


def test_a_braked_context_is_not_called_late_nor_without_worker() -> None:
    brake = Brake("platform", NOW, "dana", "why")
    verdict = judge(look(workers=(worker(contexts=("worlds",)),), brakes=(brake,), backlogs=(waiting(9999),)))
    assert [each.command for each in verdict.sentences[1:]] == ["spectral brake off --context platform"]


def test_draining_is_told_and_what_has_drained_may_be_retired() -> None:
    drained = Deployment(6, "draining", None, NOW, NOW)
    left = replace(backlog(in_flight=Amount(2)), generation=6, generation_status="draining")
    deployments = (*look().deployments, drained)
    assert "Generation 6 is draining: 2 events left." in told(judge(look(deployments=deployments, backlogs=(left,))))
    verdict = judge(look(deployments=deployments))
    assert verdict.sentences[-1].text == (
        "Generation 6 has drained, and can still be rolled back to; to give that up: spectral generations retire 6"
    )
    assert verdict.sentences[-1].command is None, "what cannot be undone is not what to do next"
    only_old = judge(look(deployments=deployments, backlogs=(left,), workers=(worker(generation=6),)))
    assert only_old.sentences[0].text.startswith("Draining: 1 worker of generation 6")


def test_rows_of_a_draining_generation_without_worker_are_to_be_handed_over() -> None:
    left = replace(waiting(240), generation=6, generation_status="draining")
    verdict = judge(look(backlogs=(left,)))
    assert verdict.sentences[1].command == "spectral generations hand-over 6 7"


@pytest.mark.parametrize(("status", "said"), [("retired", "is retired"), (None, "was never allocated")])
def test_rows_of_a_generation_that_nobody_runs_are_unhealthy(status: str | None, said: str) -> None:
    lost = replace(waiting(1), generation=3, generation_status=status)
    verdict = judge(look(backlogs=(lost,)))
    assert verdict.level is Level.UNHEALTHY
    assert verdict.sentences[1].text == f"120 events wait in generation 3, which {said}."
    assert verdict.sentences[1].command == "spectral generations hand-over 3 7"


def test_a_class_that_nobody_listens_to_is_named_with_its_worker() -> None:
    cold = lane(channel="outbox_gen_7_cold", age=240)
    verdict = judge(look(backlogs=(waiting(240, due=5),), lanes=(cold,)))
    assert verdict.sentences[0].text.startswith("Held up")
    assert "5 events for platform wait on outbox_gen_7_cold" in verdict.sentences[1].text
    assert verdict.sentences[1].command == "SPECTRAL_GENERATION=7 spectral worker <module>:<consumer> --class cold"


@pytest.mark.parametrize(("age", "level"), [(61, Level.ATTENTION), (700, Level.UNHEALTHY)])
def test_workers_that_do_not_keep_up_are_told_from_none(age: float, level: Level) -> None:
    verdict = judge(look(backlogs=(waiting(age),), lanes=(lane(age=age),)))
    assert verdict.level is level
    assert "though 1 worker is alive for it" in verdict.sentences[1].text


def test_broadcasts_that_nobody_splits_are_named() -> None:
    verdict = judge(look(backlogs=(waiting(90, None, 2),), lanes=(lane(None),)))
    assert "2 broadcasts of generation 7 not split yet" in told(verdict)


def test_dead_letters_stale_claims_and_the_default_channel_need_attention() -> None:
    found = backlog(
        failed=Amount(COUNT_CAP, capped=True), failed_lately=Amount(3), stale=Amount(2), in_flight=Amount(2)
    )
    verdict = judge(look(backlogs=(found,), lanes=(lane(channel="outbox_default"),)))
    assert verdict.level is Level.ATTENTION
    assert "10,000+ dead letters, 3 of them within the last hour." in told(verdict)
    assert "2 claims are held by workers that show no sign of life." in told(verdict)
    assert "5 events wait on outbox_default." in told(verdict)


def test_no_live_generation_is_worse_when_something_waits() -> None:
    assert judge(look(live_generation=None)).level is Level.ATTENTION
    assert judge(look(live_generation=None, backlogs=(waiting(1),), lanes=(lane(),))).level is Level.UNHEALTHY


@pytest.mark.parametrize(
    ("statuses", "command"),
    [
        ({}, "SPECTRAL_GENERATION=1 spectral worker <module>:<consumer>"),
        ({5: "retired", 6: "draining"}, "spectral generations promote 6"),
        ({6: "draining", 7: "draining", 8: "retired"}, "spectral generations promote 7"),
        ({6: "draining", 8: "allocated"}, "spectral generations promote 8"),
        ({5: "retired"}, "spectral generations allocate"),
    ],
)
def test_where_no_generation_is_live_one_is_promoted(statuses: dict[int, str], command: str) -> None:
    known = tuple(Deployment(generation, status, None, None, None) for generation, status in statuses.items())
    verdict = judge(look(live_generation=None, deployments=known))
    assert command in [each.command for each in verdict.sentences if "No generation is live" in each.text]


def test_what_puts_delivery_under_pressure_is_said() -> None:
    holder = Holder("backend", "report", "ana", 99, "idle in transaction", 12, timedelta(minutes=20))
    verdict = judge(look(notify_queue=0.3, holders=(holder,)))
    assert "The NOTIFY queue is 30% full." in told(verdict)
    assert "Backend 99, 'report' of ana (idle in transaction) has been open for 20 min" in told(verdict)
    assert judge(look(notify_queue=0.6)).level is Level.UNHEALTHY


def test_the_worst_comes_first_after_the_headline() -> None:
    found = (backlog(failed=Amount(1)), replace(waiting(1), generation=3, generation_status="retired"))
    levels = [each.level.rank for each in judge(look(backlogs=found)).sentences[1:]]
    assert levels == sorted(levels, reverse=True)


def test_limits_are_the_callers() -> None:
    look_now = look(backlogs=(waiting(5),), lanes=(lane(age=5),))
    assert judge(look_now).level is Level.OK
    assert judge(look_now, Limits(patience=timedelta(seconds=4))).level is Level.ATTENTION


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "less than 1 s"),
        (3, "3 s"),
        (59, "59 s"),
        (61, "1 min"),
        (7100, "118 min"),
        (7300, "2 h"),
        (200_000, "2 d"),
    ],
)
def test_spans_are_one_number(seconds: float, said: str) -> None:
    assert spoken(timedelta(seconds=seconds)) == said


def test_amounts_say_when_there_is_more() -> None:
    assert several(Amount.of(COUNT_CAP + 1), "event") == "10,000+ events"
    assert several(Amount.of(1), "event") == "1 event"
    assert str(Amount(3) + Amount(4, capped=True)) == "7+"


def test_rates_are_differences_of_counters_and_unknown_after_a_reset() -> None:
    def at(second: float, inserted: int) -> Snapshot:
        tables = tuple(
            Table(name, 0, 0, 0, count, None, autovacuum=True, vacuum_due_at=50)
            for name, count in (("core.outbox", inserted), ("core.event_handled", 2 * inserted))
        )
        return look(taken_at=NOW + timedelta(seconds=second), tables=tables)

    found = rates(at(0, 100), at(2, 150))
    assert (found.published, found.handled) == (25.0, 50.0)
    assert rates(at(0, 100), at(2, 10)).published is None
    assert rates(at(0, 100), at(0, 100)).handled is None


# what waits for nobody


def stray(age: float = 240, rows: int = 3, looked: int = 3) -> Stray:
    types = ("worlds.scan.completed", "worlds.scan.started")
    return Stray("platform", 7, "outbox_gen_7", types, rows, looked, timedelta(seconds=age))


def judged_late(**changes: Any) -> Finding:  # noqa: ANN401  fields by name
    seen = look(backlogs=(waiting(240, due=3),), lanes=(lane(age=240),), **changes)
    (found,) = (each for each in delivery_findings(seen, Limits()) if each.check == "late")
    return found


def test_what_no_handler_is_subscribed_to_is_no_matter_of_too_much_work() -> None:
    found = judged_late(strays=(stray(),))
    assert found.what == (
        "platform has 3 events waiting, the oldest for 4 min: no handler of platform is on record for"
        " worlds.scan.completed, worlds.scan.started in generation 7"
    )
    assert "NoHandlerError" in found.why
    assert "More is published" not in found.why
    assert found.fix == ("spectral events list --status pending --context platform --type worlds.scan.completed")
    assert found.severity is Level.ATTENTION


def test_where_others_wait_too_both_are_said() -> None:
    assert "of the others, more is published than handled" in judged_late(strays=(stray(rows=1),)).why


def test_what_is_behind_the_rows_that_were_looked_at_is_not_laid_at_their_door() -> None:
    found = judged_late(strays=(stray(rows=2, looked=2),))
    assert "of the others, more is published than handled" in found.why


@pytest.mark.parametrize(
    "changes",
    [
        {"strays": (stray(age=239),)},
        {"strays": (replace(stray(), generation=8),)},
        {"strays": (stray(),), "workers": (replace(worker(), channels=("outbox_gen_7",)),)},
    ],
    ids=["something else has waited longer", "of another generation", "a listener takes all"],
)
def test_what_is_subscribed_to_is_late_as_before(changes: dict[str, Any]) -> None:
    assert "More is published than handled" in judged_late(**changes).why


def test_the_time_after_which_it_is_given_up_is_the_workers_own() -> None:
    assert spoken(WorkerTimes().unhandled_after) == GIVEN_UP
