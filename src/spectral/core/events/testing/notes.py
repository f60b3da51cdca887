"""A probe that keeps what it is told, for tests to look at and to wait for."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from spectral.core.events.probe import NoteTaker

if TYPE_CHECKING:
    from spectral.core.events.probe import Note

NoteKind = TypeVar("NoteKind")

_USUAL_PATIENCE: Final = timedelta(seconds=30)


class RecordingProbe(NoteTaker):
    """Keeps every note, in order; may be told from any thread."""

    def __init__(self) -> None:
        self._notes: list[Note] = []
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self._lock = threading.Lock()

    def tell(self, note: Note) -> None:
        """Keep it, and wake whoever waits."""
        with self._lock:
            self._notes.append(note)
            for loop, told in self._waiting:
                loop.call_soon_threadsafe(told.set)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Everything so far."""
        with self._lock:
            return tuple(self._notes)

    def of(self, kind: type[NoteKind]) -> list[NoteKind]:
        """The notes of one kind so far."""
        return [note for note in self.notes if isinstance(note, kind)]

    async def wait_for(
        self, kind: type[NoteKind], times: int = 1, *, within: timedelta = _USUAL_PATIENCE
    ) -> list[NoteKind]:
        """Wait until so many notes of a kind were told, from the beginning, and answer them.

        Raises:
            TimeoutError: they were not told in time.
        """
        told = asyncio.Event()
        waiting = (asyncio.get_running_loop(), told)
        with self._lock:
            self._waiting.append(waiting)
        try:
            async with asyncio.timeout(within.total_seconds()):
                while len(self.of(kind)) < times:
                    told.clear()
                    # Told between the count and the clear? Then the count has changed already.
                    if len(self.of(kind)) < times:
                        await told.wait()
        except TimeoutError:
            kinds = ", ".join(type(note).__name__ for note in self.notes[-10:])
            raise TimeoutError(f"{len(self.of(kind))} of {times} {kind.__name__}; the last notes: {kinds}") from None
        finally:
            with self._lock:
                self._waiting.remove(waiting)
        return self.of(kind)
