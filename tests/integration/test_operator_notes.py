"""What an operator changes is told to whoever watches the connection: what was really changed, and nothing else."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.database import RefusedError, connect
from spectral.core.events import probe
from spectral.core.events.testing.notes import RecordingProbe
from spectral.core.operations.discard import DiscardOptions, discard, discard_matching
from spectral.core.operations.fingerprints import DeadLetterFilter
from spectral.core.operations.replay import ReplayOptions, replay, replay_matching
from spectral.core.retention import Ended, SweepOptions, SweepProgress, sweep
from tests.integration.test_retention_sweep import many_delivered
from tests.migrations.schema import role
from tests.migrations.sql import EVENT_TYPE, claim, fail, publish, settle, subscribe

Connection = psycopg.Connection[Any]


def plain_row(event_id: UUID) -> probe.RowRef:
    return probe.RowRef(event_id, probe.EventRef(event_id, EVENT_TYPE, "worlds", "platform", None, None))


async def test_only_what_was_replayed_is_told(database: str, connection: Connection) -> None:
    notes, event_id = RecordingProbe(), fail(connection)
    async with connect(database, "test", probe=notes) as operator:
        await replay(operator, [uuid4(), event_id], by="ada", reason="fixed")
        await replay(operator, [event_id], by="ada")  # it is pending by now
        with pytest.raises(RefusedError):
            await replay(operator, [fail(connection)], generation=99, by="ada")
    assert notes.notes == (probe.Replayed([plain_row(event_id)], 1, "ada", "fixed"),)


async def test_only_what_was_discarded_is_told(database: str, connection: Connection) -> None:
    notes, event_id = RecordingProbe(), fail(connection)
    async with connect(database, "test", probe=notes) as operator:
        await discard(operator, [event_id, uuid4()], by="ada", reason="a test")
        await discard(operator, [event_id], by="ada", reason="again")
    assert notes.notes == (probe.Discarded([plain_row(event_id)], "ada", "a test"),)


async def test_of_a_broadcast_s_row_it_is_told_which_event_it_was(database: str, connection: Connection) -> None:
    subscribe(connection, "platform")
    trace, workspace = f"00-{'a' * 32}-{'b' * 16}-01", uuid4()
    parent = publish(connection, target=None, p_trace_context=trace, p_workspace_id=workspace)
    connection.execute("select * from core.outbox_fan_out('{1}', '{outbox_gen_1}')")
    ((child, _),) = settle(connection, claim(connection), "dead_letter", "ValueError: no")
    told = probe.RowRef(child, probe.EventRef(parent, EVENT_TYPE, "worlds", "platform", workspace, trace))
    notes = RecordingProbe()
    with role(database, groups=("spectral_operator",)) as dsn:
        async with connect(dsn, "test", probe=notes) as operator:
            await replay(operator, [child], by="ada")
            settle(connection, claim(connection), "dead_letter", "ValueError: no")
            await discard(operator, [child], by="ada", reason="a test")
    assert notes.notes == (probe.Replayed([told], 1, "ada", None), probe.Discarded([told], "ada", "a test"))


async def test_many_are_told_as_they_are_done(database: str, connection: Connection) -> None:
    notes, ids = RecordingProbe(), [fail(connection) for _ in range(3)]
    told: list[int] = []
    async with connect(database, "test", probe=notes) as operator:
        await replay_matching(
            operator,
            DeadLetterFilter(),
            ReplayOptions(by="ada", generation=2, batch=2),
            lambda _: told.append(len(notes.notes)),
            lambda: False,
        )
        last = fail(connection)
        options = DiscardOptions(by="ada", reason="a test")
        await discard_matching(operator, DeadLetterFilter(), options, lambda _: None, lambda: False)
    assert told == [1, 2]
    assert [each for note in notes.of(probe.Replayed) for each in note.rows] == [plain_row(each) for each in ids]
    assert {note.generation for note in notes.of(probe.Replayed)} == {2}
    assert notes.of(probe.Discarded) == [probe.Discarded([plain_row(last)], "ada", "a test")]


async def test_a_sweep_is_told_when_it_has_ended_however_it_did(database: str, connection: Connection) -> None:
    notes, few = RecordingProbe(), SweepOptions(batch=1)
    many_delivered(connection, 3, 60)

    def break_off(_: SweepProgress) -> None:
        raise ValueError("enough")

    with role(database, groups=("spectral_retention",)) as dsn:
        async with connect(dsn, "test", probe=notes) as sweeper:
            await sweep(sweeper, options=SweepOptions(dry_run=True))
            assert notes.notes == ()
            with pytest.raises(ValueError, match="enough"):
                await sweep(sweeper, options=few, on_progress=break_off)
            assert (await sweep(sweeper, options=few)).ended is Ended.COMPLETE
            connection.execute("select core.sweep_begin('anna')")
            assert (await sweep(sweeper)).ended is Ended.BUSY
    ends = [(note.put_away, note.deleted, note.finished) for note in notes.of(probe.Swept)]
    assert ends == [(1, 0, False), (2, 0, True)]
    assert len(notes.notes) == 2
