"""The rules of the protocol that are taken out one by one, and the test that must notice each time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_FLOW: Final = "src/spectral/core/events/delivery"
_POSTGRES: Final = "src/spectral/core/events/infrastructure/postgres"
_TOGETHER: Final = "tests/integration/delivery/test_together.py"
_ABREAST_LIMITS: Final = "tests/integration/delivery/test_abreast_limits.py"
_FAIRNESS: Final = "tests/integration/delivery/test_fairness.py"
_ABREAST_FAILURES: Final = "tests/integration/delivery/test_abreast_failures.py"
_OPEN_PUBLISHER: Final = (
    "tests/integration/delivery/test_bell.py"
    "::test_an_open_silent_publisher_is_waited_for_and_its_event_delivered_promptly"
)


@dataclass(frozen=True)
class Edit:
    """Other text in a file of the library."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Function:
    """Other text in an SQL function of the schema core, whichever migration has the last word on it.

    Of several of one name it is the one that has the text; it has to be one that workers still call.
    """

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class NoTrigger:
    """One trigger less."""

    name: str
    table: str


@dataclass(frozen=True)
class Mutation:
    """A rule taken out, and who must notice."""

    name: str
    changes: tuple[Edit | Function | NoTrigger, ...]
    test: str


MUTATIONS: Final = (
    Mutation(
        "others run after a handler that may have left something behind",
        (
            Edit(
                f"{_FLOW}/together.py",
                "            if not self._lane.was_plain:\n                return\n",
                "",
            ),
        ),
        f"{_TOGETHER}::test_what_one_handler_leaves_in_the_session_the_next_one_does_not_find",
    ),
    Mutation(
        "fence removed",
        (
            Function("outbox_begin_one", "and outbox.claim_token = p_token", ""),
            Function("outbox_deliver", "and outbox.claim_token = given.token", ""),
            Function("outbox_settle", "where outbox.claim_token = given.token", "where given.token = given.token"),
        ),
        "tests/faults/test_takeover.py::test_a_zombie_is_told_that_its_claims_are_no_longer_its_own",
    ),
    Mutation(
        "fence removed for rows alike",
        (Function("outbox_deliver_alike", "and outbox.claim_token = p_token", ""),),
        "tests/integration/delivery/test_settle.py::test_of_a_heap_those_are_lost_whose_leases_did_not_stand",
    ),
    Mutation(
        "dedup gate ignored",
        (Function("outbox_begin_one", "case when found then 'run' else 'handled' end", "'run'"),),
        "tests/faults/test_order.py::test_many_rows_with_one_key_take_effect_once",
    ),
    Mutation(
        "safety poll removed",
        (
            Edit(
                f"{_FLOW}/claim.py",
                "poll = (times.poll_deaf if self._ways.is_deaf() else times.poll).total_seconds()",
                "poll = math.inf if times else 0.0",
            ),
        ),
        "tests/faults/test_ear.py::test_swallowed_notifications_are_made_up_for_by_the_safety_poll",
    ),
    Mutation(
        "LISTEN after the drain",
        (
            Edit(
                f"{_FLOW}/hear.py", "await self._ear.open()", "self._wake()\n                    await self._ear.open()"
            ),
            Edit(
                f"{_FLOW}/hear.py",
                "self._wake()\n                    await self._listen(backoff)",
                "await self._listen(backoff)",
            ),
        ),
        "tests/faults/test_ear.py::test_what_was_committed_before_the_worker_listened_is_drained",
    ),
    Mutation(
        "attempts not counted at the claim",
        (Function("outbox_claim_from", "attempts = claimed.attempts + 1,", ""),),
        "tests/faults/test_poison.py::test_slow_neighbours_are_not_taken_along_again_and_again",
    ),
    Mutation(
        "liveness lock not taken",
        (
            Edit(
                f"{_POSTGRES}/ear.py",
                "select pg_advisory_lock_shared(core.worker_lock_key(%s))",
                "select core.worker_lock_key(%s)",
            ),
        ),
        "tests/faults/test_takeover.py::test_a_worker_that_stands_still_for_less_than_its_lease_keeps_its_rows",
    ),
    Mutation(
        "liveness not asked for",
        (Function("outbox_reap", "or core.worker_lock_key(outbox.claimed_by) <> all (v_living)", ""),),
        "tests/faults/test_takeover.py::test_the_rows_of_a_killed_worker_are_taken_over_long_before_their_lease_ends",
    ),
    Mutation(
        "guard trigger dropped",
        (NoTrigger("event_handled_settled", "core.event_handled"),),
        "tests/faults/test_misuse.py::test_a_handler_that_commits_by_itself_is_never_delivered",
    ),
    Mutation(
        "leases not renewed",
        (Edit(f"{_FLOW}/keep.py", "if not leases or not self.may_renew():", "if leases or not self.may_renew():"),),
        "tests/faults/test_takeover.py::test_a_worker_that_renews_its_leases_keeps_its_rows",
    ),
    Mutation(
        "no quarantine",
        (Edit(f"{_FLOW}/claim.py", "return delivery.suspect and (", "return False and ("),),
        "tests/faults/test_poison.py::test_slow_neighbours_are_not_taken_along_again_and_again",
    ),
    Mutation(
        "every busy worker waits with a dangerous row",
        (Edit(f"{_FLOW}/quarantine.py", "_OFFERED: Final = 0.5", "_OFFERED: Final = 30.0"),),
        f"{_FAIRNESS}::test_of_several_busy_workers_one_waits_with_a_dangerous_row_and_the_others_go_on",
    ),
    Mutation(
        "to be set aside charges the attempt",
        (Function("outbox_set_aside", "attempts = outbox.attempts - 1,", ""),),
        f"{_FAIRNESS}::test_of_several_busy_workers_one_waits_with_a_dangerous_row_and_the_others_go_on",
    ),
    Mutation(
        "lost claims not given back",
        (Edit(f"{_FLOW}/keep.py", "self._release_unknown: 2 * times.answer.total_seconds(),", ""),),
        "tests/faults/test_takeover.py::test_a_claim_whose_answer_was_lost_is_given_back_long_before_its_lease_ends",
    ),
    Mutation(
        "release charges the attempt",
        (Function("outbox_release", "attempts = outbox.attempts - 1,", ""),),
        "tests/faults/test_takeover.py::test_whoever_insists_on_the_end_gets_it_and_the_rows_are_given_back",
    ),
    Mutation(
        "silent publishers not waited for",
        (
            Function(
                "bell_quiet",
                "if not pg_try_advisory_xact_lock(core.bell_lock_key(v_each.channel, v_each.context)) then",
                "if false then",
            ),
        ),
        _OPEN_PUBLISHER,
    ),
    Mutation(
        "silent publishers hold no lock",
        (
            Function(
                "outbox_bell_needed",
                "and pg_try_advisory_xact_lock_shared("
                "hashtextextended('spectral.bell.' || p_channel || '/' || v_context, 0))",
                "",
            ),
        ),
        _OPEN_PUBLISHER,
    ),
    Mutation(
        "nobody takes over from a dead worker that was awake",
        (Edit(f"{_FLOW}/keep.py", "await self._keeper.mend_bell()\n", "\n"),),
        "tests/integration/delivery/test_bell.py::test_what_a_dead_worker_promised_to_see_is_seen_by_another",
    ),
    Mutation(
        "every lane may have the only group of a handler",
        (
            Edit(
                f"{_POSTGRES}/conclusions.py",
                "return begin if only is None else _ONLY",
                "return begin if only is None or only else _ONLY",
            ),
        ),
        "tests/integration/delivery/test_kept_apart.py::test_after_a_deadlock_there_is_one_group_at_a_time",
    ),
    Mutation(
        "keys that were taken meanwhile do not undo a group",
        (Function("outbox_deliver_together", " or v_handled <> greatest(cardinality(p_ids) - 1, 0)", ""),),
        f"{_TOGETHER}::test_a_key_that_somebody_takes_meanwhile_undoes_the_group_and_not_the_effects_of_others",
    ),
    Mutation(
        "a group is begun although somebody has a row of it",
        (
            Function("outbox_begin_together", "where outbox.claim_token = claim.token", "where true"),
            Function("outbox_deliver_together", "and outbox.claim_token = given.token", ""),
        ),
        f"{_TOGETHER}::test_a_row_that_was_taken_away_is_not_run",
    ),
    Mutation(
        "a group is committed without its guard",
        (
            Function(
                "outbox_begin_together",
                "and core.outbox_begin_one(p_ids[1], p_tokens[1], p_handler_names[1]) = 'run'",
                "",
            ),
            Function("outbox_deliver_together", "greatest(cardinality(p_ids) - 1, 0)", "cardinality(p_ids)"),
        ),
        f"{_TOGETHER}::test_a_handler_that_commits_is_refused_and_its_neighbours_take_effect_once",
    ),
    Mutation(
        "a failure counts without the row's gate",
        (
            Edit(
                f"{_FLOW}/blame.py",
                "if voided.undone and group.conclusions:",
                "if voided.undone and not group.current:",
            ),
        ),
        f"{_TOGETHER}::test_two_rows_of_one_key_in_one_group_do_not_fail_by_each_other",
    ),
    Mutation(
        "who runs beside others may send as many statements as he likes",
        (
            Edit(f"{_POSTGRES}/errands.py", "or self._errand is not None or is_elsewhere", "or is_elsewhere"),
            Edit(f"{_FLOW}/abreast.py", "if walk.transaction.overran:", "if False:"),
        ),
        f"{_ABREAST_LIMITS}::test_who_reads_before_he_writes_loses_no_update",
    ),
    Mutation(
        "what was done beside one who wanted more is kept",
        (Edit(f"{_FLOW}/abreast.py", "if walk.transaction.overran:", "if False:"),),
        f"{_ABREAST_LIMITS}::test_who_wants_more_than_a_statement_is_run_by_himself",
    ),
    Mutation(
        "who fails beside others does not undo what they did",
        (
            Edit(
                f"{_FLOW}/abreast.py",
                "                self._desk.trust.failed(walk.handler.name)\n"
                "                raise TakenBackError(unusable=unanswered)",
                "                self._desk.trust.failed(walk.handler.name)",
            ),
        ),
        f"{_ABREAST_FAILURES}::test_one_that_fails_after_its_statement_fails_alone",
    ),
)
