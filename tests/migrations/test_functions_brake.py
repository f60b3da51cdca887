"""The brake: nothing of a context is claimed while it is pulled, nothing is lost, and letting go wakes everybody."""

from __future__ import annotations

from typing import LiteralString
from uuid import UUID

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, value
from tests.migrations.sql import (
    CHANNELS,
    audit,
    begin,
    claim,
    entry,
    held_by,
    held_up,
    publish,
    reap,
    refusal,
    settle,
    subscribe,
)


def pull(connection: Connection, context: str | None = "platform", reason: str | None = "r") -> bool:
    return bool(value(connection, "select core.brake_pull(%s, 'ada', %s)", [context, reason]))


def release(connection: Connection, context: str = "platform") -> bool:
    return bool(value(connection, "select core.brake_release(%s, 'ada', 'r')", [context]))


def claimed(connection: Connection, context: str = "platform") -> list[UUID]:
    return [held.id for held in claim(connection, context=context)]


def test_nothing_of_the_context_is_claimed_until_it_is_let_go(session: Connection) -> None:
    ours, theirs = publish(session), publish(session, target="worlds")
    assert pull(session)
    assert claimed(session) == []
    assert claimed(session, "worlds") == [theirs]
    later = publish(session)  # publishing goes on
    assert release(session)
    assert claimed(session) == [ours, later]
    detail = {"context": "platform"}
    assert audit(session) == [entry("brake", detail, 0), entry("release_brake", detail, 0)]


def test_the_brake_of_all_stops_every_context_and_the_splitting_of_broadcasts(session: Connection) -> None:
    subscribe(session, "platform")
    ours, parent = publish(session), publish(session, target=None)
    split = "select parent_id from core.outbox_fan_out('{1}', %s)"
    pull(session, "*")
    assert claimed(session) == []
    assert session.execute(split, [CHANNELS]).fetchall() == []
    assert release(session, "*")
    assert claimed(session) == [ours]
    assert session.execute(split, [CHANNELS]).fetchall() == [(parent,)]


def test_the_brake_of_one_context_does_not_keep_broadcasts_from_being_split(session: Connection) -> None:
    subscribe(session, "platform")
    subscribe(session, "worlds")
    publish(session, target=None)
    pull(session)
    split = session.execute("select context from core.outbox_fan_out('{1}', %s)", [CHANNELS]).fetchall()
    assert split == [("platform",), ("worlds",)]
    assert claimed(session) == []
    assert len(claimed(session, "worlds")) == 1


def test_each_brake_holds_by_itself(session: Connection) -> None:
    event_id = publish(session)
    pull(session)
    pull(session, "*")
    release(session)
    assert claimed(session) == []
    release(session, "*")
    assert claimed(session) == [event_id]


def test_what_is_being_handled_is_finished(session: Connection) -> None:
    for _ in range(5):
        publish(session)
    claims = claim(session)
    pull(session)
    delivered, retried, released, renewed, orphaned = claims
    assert begin(session, [delivered]) == ["run"]
    assert settle(session, [delivered], "delivered") == [(delivered.id, "delivered")]
    assert settle(session, [retried], "retry", "OSError: x") == [(retried.id, "pending")]
    assert held_by(session, "outbox_release", [released]) == [released.id]
    assert held_by(session, "outbox_renew", [renewed]) == [renewed.id]
    assert {found for found, *_ in reap(session)} == {renewed.id, orphaned.id}
    assert claimed(session) == []


def test_pulling_it_again_changes_nothing_and_says_so(session: Connection) -> None:
    assert pull(session, reason="the disk is full")
    assert not pull(session, reason="another")
    assert session.execute("select context, pulled_by, reason from core.brakes").fetchall() == [
        ("platform", "ada", "the disk is full")
    ]
    assert len(audit(session)) == 1


def test_letting_go_what_nobody_pulled_says_so(session: Connection) -> None:
    assert not release(session)
    assert not value(session, "select core.brake_release(null)")
    assert audit(session) == []


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_it_is_not_pulled_without_a_reason(session: Connection, reason: str | None) -> None:
    said = refusal(session, "select core.brake_pull('platform', 'ada', %s)", reason)
    assert (said.sqlstate, said.message_primary) == ("22023", "the brake is not pulled without a reason")
    assert value(session, "select count(*) from core.brakes") == 0


@pytest.mark.parametrize("context", [None, "", "Platform", "**", "a b", "p" * 64, "platform\n"])
def test_what_is_no_context_has_no_brake(session: Connection, context: str | None) -> None:
    # A brake that stops nothing would let its reader believe that it does.
    said = refusal(session, "select core.brake_pull(%s, 'ada', 'r')", context)
    assert said.sqlstate == "22023"
    assert (said.message_primary or "").endswith("is no context")
    assert "core.subscriptions" in (said.message_hint or "")


def test_long_names_and_reasons_are_cut_not_refused(session: Connection) -> None:
    value(session, "select core.brake_pull('platform', %s, %s)", ["a" * 300, "r" * 3000])
    found = session.execute("select length(pulled_by), length(reason) from core.brakes").fetchall()
    assert found == [(200, 2000)]


def test_letting_go_wakes_every_channel_on_which_something_waits_once(connection: Connection) -> None:
    channels = ["outbox_gen_1", "outbox_gen_1_cold", "outbox_gen_1_hot", "outbox_gen_2"]
    for _ in range(3):
        for given in ({"p_class": "hot"}, {"p_class": "cold"}, {"p_generation": 2}, {}):
            publish(connection, **given)
    pull(connection)
    listen: list[LiteralString] = [
        "outbox_gen_1",
        "outbox_gen_1_cold",
        "outbox_gen_1_hot",
        "outbox_gen_2",
        "outbox_gen_3",
    ]
    for channel in listen:
        connection.execute("listen " + channel)
    release(connection)
    connection.execute("notify outbox_gen_3")
    assert [each.channel for each in connection.notifies(timeout=10, stop_after=5)] == [*channels, "outbox_gen_3"]


def test_of_two_that_pull_it_at_once_one_did(connection: Connection, database: str) -> None:
    with psycopg.connect(database) as ada, psycopg.connect(database, autocommit=True) as bob:
        assert pull(ada)
        with held_up(connection, ada, bob, "select core.brake_pull('platform', 'bob', 'too')") as answer:
            ada.commit()
            assert answer.result() == [(False,)]
    assert [each["actor"] for each in audit(connection)] == ["ada"]


def test_a_claim_does_not_wait_for_whoever_has_their_hand_on_it(connection: Connection, database: str) -> None:
    event_id = publish(connection)
    with psycopg.connect(database) as ada:
        pull(ada)
        connection.execute("set lock_timeout = '1ms'")
        assert claimed(connection) == [event_id]
        ada.commit()


def test_operators_pull_it_and_workers_do_not(connection: Connection, database: str) -> None:
    with logged_in(database, "spectral_operator") as operator:
        assert operator.execute("select core.brake_pull('platform', null, 'r')").fetchall() == [(True,)]
        user = operator.info.user
    assert audit(connection)[0]["actor"] == user
    for group in ("spectral_worker", "spectral_publisher", "spectral_retention", "spectral_readonly"):
        with logged_in(database, group) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select core.brake_release('platform')")
