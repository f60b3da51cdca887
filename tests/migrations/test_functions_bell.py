"""The bell: when publishers notify, who lets them be silent, and how that is taken back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import LiteralString

import psycopg
import pytest

from tests.migrations.schema import Connection, logged_in, value
from tests.migrations.sql import EVENT_TYPE, audit, entry, held_up, publish, refusal, subscribe

CHANNEL = "outbox_gen_1"
STARTED = "worlds.scan.started"


@pytest.fixture
def ear(database: str) -> Iterator[Connection]:
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("listen outbox_gen_1")
        connection.execute("listen outbox_default")
        yield connection


@pytest.fixture
def publisher(database: str) -> Iterator[Connection]:
    """One whose transactions are its own business."""
    with psycopg.connect(database) as connection:
        yield connection


def heard(ear: Connection) -> list[str]:
    """What was heard by now."""
    ear.execute("notify outbox_gen_1, 'now'")
    rung: list[str] = []
    for each in ear.notifies(timeout=10):
        if each.payload == "now":
            return rung
        rung.append(each.payload)
    pytest.fail("the ear is deaf")


def awake(
    connection: Connection, *event_types: str | None, context: str = "platform", worker: str = "w", length: str = "5 s"
) -> None:
    types = list(event_types) or [None]
    connection.execute(
        "select core.bell_awake(%s, %s, %s, %s::text[], %s::interval)",
        [worker, [CHANNEL, "outbox_default"], [context] * len(types), types, length],
    )


def asleep(connection: Connection, worker: str = "w") -> bool:
    return bool(value(connection, "select core.bell_asleep(%s, %s, '{platform}')", [worker, [CHANNEL]]))


def quiet(connection: Connection, worker: str = "w") -> bool:
    return bool(value(connection, "select core.bell_quiet(%s, %s, '{platform}')", [worker, [CHANNEL]]))


def mend(connection: Connection) -> int:
    return int(value(connection, "select core.bell_mend('0 s')"))


def set_mode(connection: Connection, mode: str | None, reason: str | None = "r") -> bool:
    return bool(value(connection, "select core.bell_set(%s, 'ada', %s)", [mode, reason]))


def leases(connection: Connection) -> list[tuple[str, str, bool]]:
    return connection.execute(
        "select context, worker, awake_until > clock_timestamp() from core.bell_leases order by context, worker"
    ).fetchall()


def hold(connection: Connection, context: str = "platform") -> bool:
    asked = [[CHANNEL, "outbox_default"], [context]]
    return bool(value(connection, "select core.bell_hold('w', %s, %s, '{null}', '5 s')", asked))


# when publishers ring


def test_while_nobody_is_awake_every_publish_rings(connection: Connection, ear: Connection) -> None:
    published = [str(publish(connection)) for _ in range(2)]
    assert heard(ear) == published


def test_while_a_worker_is_awake_nobody_rings(connection: Connection, ear: Connection) -> None:
    awake(connection)
    publish(connection)
    assert heard(ear) == []
    assert leases(connection) == [("*", "w", True), ("platform", "w", True)]


def test_for_another_context_they_do(connection: Connection, ear: Connection) -> None:
    awake(connection)
    published = publish(connection, target="worlds")
    assert heard(ear) == [str(published)]


def test_any_worker_that_is_awake_sees_to_broadcasts(connection: Connection, ear: Connection) -> None:
    first = publish(connection, target=None)
    awake(connection, context="worlds")
    publish(connection, target=None)
    assert heard(ear) == [str(first)]


def test_a_lease_that_has_run_out_is_none(connection: Connection, ear: Connection) -> None:
    awake(connection, length="0 s")
    published = publish(connection)
    assert heard(ear) == [str(published)]


def test_a_crash_of_the_server_empties_the_leases(connection: Connection) -> None:
    assert value(connection, "select relpersistence from pg_class where oid = 'core.bell_leases'::regclass") == "u"


def test_one_ring_is_enough_for_a_transaction(publisher: Connection, ear: Connection) -> None:
    first = publish(publisher)
    publish(publisher)
    broadcast = publish(publisher, target=None)
    publisher.commit()
    second = publish(publisher)
    publisher.commit()
    assert heard(ear) == [str(first), str(broadcast), str(second)]


def test_a_ring_that_is_rolled_back_is_rung_again(publisher: Connection, ear: Connection) -> None:
    with publisher.transaction():
        with publisher.transaction(force_rollback=True):
            publish(publisher)
        kept = publish(publisher)
    assert heard(ear) == [str(kept)]


def test_a_lock_that_is_rolled_back_is_taken_again(connection: Connection, publisher: Connection) -> None:
    awake(connection)
    with publisher.transaction():
        with publisher.transaction(force_rollback=True):
            publish(publisher)
        assert quiet(connection)
        awake(connection)
        publish(publisher)
        asleep(connection)
        assert not quiet(connection)
    assert quiet(connection)


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_stricter_isolation_rings(
    connection: Connection, publisher: Connection, ear: Connection, isolation: LiteralString
) -> None:
    awake(connection)
    publisher.execute("set transaction isolation level " + isolation)
    published = publish(publisher)
    publisher.commit()
    assert heard(ear) == [str(published)]


def test_whoever_finds_the_lock_taken_rings(connection: Connection, publisher: Connection, ear: Connection) -> None:
    awake(connection)
    publisher.execute("select pg_advisory_xact_lock(core.bell_lock_key(%s, 'platform'))", [CHANNEL])
    published = publish(connection)
    assert heard(ear) == [str(published)]


def test_the_lease_is_read_after_the_lock_was_taken(connection: Connection, publisher: Connection) -> None:
    # The transaction, and its first snapshot, are older than the lease and its end.
    publisher.execute("select 1")
    awake(connection)
    assert value(publisher, "select core.outbox_bell_needed(%s, 'platform')", [CHANNEL]) is False
    publisher.rollback()
    publisher.execute("select 1")
    asleep(connection)
    assert value(publisher, "select core.outbox_bell_needed(%s, 'platform')", [CHANNEL]) is True


def test_a_publisher_by_plain_insert_is_silent_too(connection: Connection, database: str, ear: Connection) -> None:
    awake(connection)
    with logged_in(database, "spectral_publisher") as session:
        session.execute("set spectral.workspace_id = ''")
        session.execute(
            "insert into core.outbox (event_type, source, target, generation, channel)"
            " values (%s, 'worlds', 'platform', 1, %s)",
            [EVENT_TYPE, CHANNEL],
        )
    assert heard(ear) == []


# who may be trusted


def test_rows_without_a_channel_are_of_any_generation_so_there_is_no_lease_for_them(connection: Connection) -> None:
    awake(connection)
    assert value(connection, "select count(*) from core.bell_leases where channel <> %s", [CHANNEL]) == 0


def test_who_lacks_a_type_of_the_context_gets_no_lease_for_it(connection: Connection, ear: Connection) -> None:
    subscribe(connection, "platform")  # to EVENT_TYPE
    awake(connection, STARTED)
    assert leases(connection) == [("*", "w", True)]
    awake(connection, STARTED, EVENT_TYPE)
    assert leases(connection) == [("*", "w", True), ("platform", "w", True)]
    publish(connection)
    assert heard(ear) == []


def test_no_lease_is_given_while_publishers_ring_anyway(connection: Connection) -> None:
    set_mode(connection, "always")
    awake(connection)
    assert leases(connection) == []


@pytest.mark.parametrize(("worker", "length"), [("", "1 s"), (None, "1 s"), ("w", "11 s"), ("w", None)])
def test_a_lease_has_a_name_and_is_short(session: Connection, worker: str | None, length: str | None) -> None:
    said = refusal(session, "select core.bell_awake(%s, '{outbox_gen_1}', '{a}', '{b}', %s)", worker, length)
    assert said.sqlstate == "22023"


# falling asleep


def test_a_full_worker_has_a_lease_while_rows_come_in_and_the_others_are_woken(
    connection: Connection, ear: Connection
) -> None:
    with connection.transaction():
        for _ in range(50):
            publish(connection)
        connection.execute("update core.outbox set next_attempt_at = clock_timestamp()")
        assert not hold(connection, "worlds")
        assert hold(connection)
    assert leases(connection) == [("*", "w", True), ("platform", "w", True)]
    assert "" not in heard(ear)  # publishers have woken them so far
    connection.execute("update core.outbox set next_attempt_at = clock_timestamp()")
    assert hold(connection)
    assert set(heard(ear)) == {""}


@pytest.mark.parametrize(("rows", "holds"), [(10, True), (9, False)])
def test_a_full_worker_that_has_a_lease_keeps_it_for_less(session: Connection, rows: int, *, holds: bool) -> None:
    awake(session)
    for _ in range(rows):
        publish(session)
    session.execute("update core.outbox set next_attempt_at = clock_timestamp()")
    assert hold(session) == holds


@pytest.mark.parametrize(("rows", "due"), [(49, "0 s"), (60, "-1 s"), (60, "1 min")])
def test_few_rows_and_old_ones_and_those_that_are_not_due_are_no_stream(
    session: Connection, rows: int, due: str
) -> None:
    for _ in range(rows):
        publish(session)
    session.execute("update core.outbox set next_attempt_at = clock_timestamp() + %s::interval", [due])
    assert not hold(session)
    assert leases(session) == []


def test_a_withdrawn_lease_is_trusted_by_nobody_and_stays_until_it_is_quiet(
    connection: Connection, ear: Connection
) -> None:
    awake(connection)
    assert asleep(connection)
    published = publish(connection)
    assert heard(ear) == [str(published)]
    assert leases(connection) == [("*", "w", False), ("platform", "w", False)]
    assert quiet(connection)
    assert heard(ear) == [""]  # whoever else there is looks
    assert leases(connection) == []
    assert quiet(connection)
    assert heard(ear) == []
    assert not asleep(connection)


@pytest.mark.parametrize("target", ["platform", None])
def test_it_is_not_quiet_while_a_silent_publisher_is_open(
    connection: Connection, publisher: Connection, target: str | None
) -> None:
    awake(connection)
    publish(publisher, target=target)
    asleep(connection)
    assert not quiet(connection)
    assert len(leases(connection)) == 2
    publisher.commit()
    assert quiet(connection)


def test_another_context_is_nobodys_business(connection: Connection, publisher: Connection) -> None:
    awake(connection)
    awake(connection, context="worlds", worker="other")
    publish(publisher, target="worlds")
    asleep(connection)
    assert quiet(connection)
    assert leases(connection) == [("*", "other", True), ("worlds", "other", True)]


def test_the_leases_of_the_dead_are_taken_away_when_it_is_quiet(
    connection: Connection, publisher: Connection, ear: Connection
) -> None:
    awake(connection, worker="dead", length="1 s")
    publish(publisher)
    awake(connection, worker="dead", length="0 s")
    assert mend(connection) == 1  # that for broadcasts
    publisher.commit()
    assert heard(ear) == [""]
    awake(connection, worker="alive")
    assert mend(connection) == 1
    assert heard(ear) == [""]
    assert leases(connection) == [("*", "alive", True), ("platform", "alive", True)]
    assert mend(connection) == 0


def test_what_is_no_channel_is_not_rung(session: Connection) -> None:
    assert refusal(session, "select core.bell_ring('other')").sqlstate == "22023"


# modes


def test_always_rings_for_every_row(connection: Connection, publisher: Connection, ear: Connection) -> None:
    awake(connection)
    assert set_mode(connection, "always")
    published = [str(publish(publisher)) for _ in range(3)]
    publisher.commit()
    assert heard(ear) == published


def test_off_never_rings(connection: Connection, ear: Connection) -> None:
    set_mode(connection, "off")
    publish(connection)
    connection.execute("select core.bell_ring(%s)", [CHANNEL])
    assert heard(ear) == []
    set_mode(connection, "bell")
    published = publish(connection)
    assert heard(ear) == [str(published)]


def test_a_bell_that_was_lost_rings(connection: Connection, ear: Connection) -> None:
    awake(connection)
    connection.execute("delete from core.bell")
    published = publish(connection)
    assert heard(ear) == [str(published)]
    assert set_mode(connection, "bell")
    awake(connection)
    publish(connection)
    assert heard(ear) == []


@pytest.mark.parametrize(
    "change", ["update core.bell set mode = 'always'", "delete from core.bell", "truncate core.bell"]
)
def test_leases_end_with_the_mode_that_they_are_for(session: Connection, change: LiteralString) -> None:
    awake(session)
    session.execute("update core.bell set reason = 'as it was'")
    assert leases(session) == [("*", "w", True), ("platform", "w", True)]
    session.execute(change)
    assert leases(session) == [("*", "w", False), ("platform", "w", False)]


def test_a_lease_that_is_renewed_while_the_mode_changes_ends_too(
    connection: Connection, publisher: Connection, database: str
) -> None:
    """Publishers who find a lease do not ask for the mode."""
    awake(connection)
    assert set_mode(publisher, "always")
    renews: LiteralString = "select core.bell_awake('w', '{outbox_gen_1}', '{platform}', '{null}', '5 s')"
    with (
        psycopg.connect(database, autocommit=True) as worker,
        held_up(connection, publisher, worker, renews) as renewed,
    ):
        publisher.commit()
        renewed.result(timeout=30)
    assert leases(connection) == [("*", "w", False), ("platform", "w", False)]


def test_a_change_is_audited_and_no_change_is_none(session: Connection) -> None:
    assert set_mode(session, "off", "the queue is full")
    assert not set_mode(session, "off", "again")
    assert session.execute("select mode, changed_by, reason from core.bell").fetchall() == [
        ("off", "ada", "the queue is full")
    ]
    assert audit(session) == [entry("bell", {"from": "bell", "to": "off"}, 0, reason="the queue is full")]


@pytest.mark.parametrize(
    ("mode", "reason"), [("loud", "r"), (None, "r"), ("off", None), ("off", " ")], ids=["mode", "none", "null", "blank"]
)
def test_it_is_set_to_what_it_knows_and_with_a_reason(
    session: Connection, mode: str | None, reason: str | None
) -> None:
    assert refusal(session, "select core.bell_set(%s, 'ada', %s)", mode, reason).sqlstate == "22023"
    assert value(session, "select mode from core.bell") == "bell"


def test_operators_set_it_and_workers_do_not(connection: Connection, database: str) -> None:
    with logged_in(database, "spectral_operator") as operator:
        assert operator.execute("select core.bell_set('off', null, 'r')").fetchall() == [(True,)]
    for group in ("spectral_worker", "spectral_publisher", "spectral_retention", "spectral_readonly"):
        with logged_in(database, group) as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
            session.execute("select core.bell_set('bell', null, 'r')")
    assert len(audit(connection)) == 1


def test_a_publisher_meets_no_old_versions_of_a_lease(connection: Connection, database: str) -> None:
    """However long a snapshot keeps them alive, only those that have not run out are looked at."""
    with psycopg.connect(database) as pinning:
        pinning.execute("set transaction isolation level repeatable read")
        pinning.execute("select 1")
        for _ in range(300):
            awake(connection, length="-1 s")
        asked = "select core.outbox_bell_needed('outbox_gen_1', 'platform')"
        assert value(connection, asked) is True  # the plans are made
        plan = value(connection, "explain (analyze, buffers, format json) " + asked)[0]["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 50
