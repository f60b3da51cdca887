"""The wire does what the fault tests believe it does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from typing import Any

import psycopg
import pytest

from tests.faults.crew import eventually
from tests.faults.wire import Direction, Wire


def connect(wire: Wire, name: str = "test") -> psycopg.Connection[Any]:
    return psycopg.connect(wire.dsn, autocommit=True, application_name=name, connect_timeout=5)


def test_a_frozen_connection_goes_on_when_it_is_thawed_and_others_never_stopped(wire: Wire) -> None:
    with connect(wire, "cold") as cold, connect(wire, "warm") as warm, ThreadPoolExecutor() as pool:
        wire.freeze("cold")
        answer = pool.submit(lambda: cold.execute("select 1").fetchone())
        assert warm.execute("select 2").fetchone() == (2,)
        with pytest.raises(NotYetError):
            answer.result(0.3)
        wire.thaw("cold")
        assert answer.result(5) == (1,)


def test_a_connection_can_be_frozen_before_it_has_begun(wire: Wire) -> None:
    wire.freeze("cold", new=True)
    with ThreadPoolExecutor() as pool:
        opening = pool.submit(connect, wire, "cold")
        wire.wait_for("cold")
        with pytest.raises(NotYetError):
            opening.result(0.3)
        wire.thaw()
        opening.result(5).close()


def test_a_cut_connection_is_lost_on_both_sides(wire: Wire, connection: psycopg.Connection[Any]) -> None:
    with connect(wire, "cut me") as lost:
        lost.execute("begin")
        assert wire.cut("cut me") == 1
        with pytest.raises(psycopg.OperationalError):
            lost.execute("select 1")
    gone = "select count(*) from pg_stat_activity where application_name = 'cut me'"
    eventually(lambda: connection.execute(gone).fetchone() == (0,), "the server has noticed")


def test_what_is_swallowed_was_done_and_never_answered(wire: Wire, connection: psycopg.Connection[Any]) -> None:
    connection.execute("create table public.done (id int)")
    with connect(wire) as unheard, ThreadPoolExecutor() as pool:
        wire.swallow(Direction.TO_CLIENT)
        waiting = pool.submit(unheard.execute, "insert into public.done values (1)")
        done = "select count(*) from public.done"
        eventually(lambda: connection.execute(done).fetchone() == (1,), "it is done")
        wire.cut()
        with pytest.raises(psycopg.OperationalError):
            waiting.result(5)


def test_notifications_are_swallowed_and_nothing_else(wire: Wire, connection: psycopg.Connection[Any]) -> None:
    with connect(wire) as ear:
        ear.execute("listen news")
        wire.swallow_notifications()
        connection.execute("notify news")
        assert ear.execute("select 1").fetchone() == (1,)
        assert wire.swallowed_notifications() == 1
        wire.swallow_notifications(on=False)
        connection.execute("notify news, 'heard'")
        assert [each.payload for each in ear.notifies(timeout=5, stop_after=1)] == ["heard"]


def test_a_wire_that_refuses_lets_nobody_in_until_it_is_healed(wire: Wire) -> None:
    wire.refuse()
    with pytest.raises(psycopg.OperationalError):
        connect(wire)
    wire.heal()
    with connect(wire) as let_in:
        assert let_in.execute("select 1").fetchone() == (1,)
