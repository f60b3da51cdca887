"""What the flow asks of its adapters: narrow ports, cut by who uses them. Values go in, values come out.

Every method may raise `SubstrateLostError`: the database is gone or does not answer. Nothing else is expected of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from spectral.core.events.protocols import Transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.events.consumer import Handler, Subscription
    from spectral.core.events.lease import Delivery, Lease
    from spectral.core.events.outcome import Outcome
    from spectral.core.events.probe import FannedOut, Reaped, Unhandled


class ClaimAsk(NamedTuple):
    """Rows of one context that there is room for; no types means every type.

    handler_types: of which type each handler's key is to be looked for, parallel to the names; none means every type.
    start: only what fell due from then on; none: from the beginning. window: look at so many rows at most, of whatever
    type; none: at all that are due.
    """

    context: str
    event_types: tuple[str, ...] | None
    handler_names: tuple[str, ...]
    limit: int
    start: datetime | None = None
    window: int | None = None
    handler_types: tuple[str, ...] = ()


class ClaimAnswer(NamedTuple):
    """What was claimed, when by the database's clock, and how far the claim looked if there may be more from there on.

    No clock: nothing may be claimed at present, by the brake.
    """

    deliveries: list[Delivery]
    now: datetime | None = None
    reached: datetime | None = None


@dataclass(frozen=True, slots=True)
class Outlook:
    """What was fanned out, and how long until the next row that was not due when the claim was made."""

    fanned_out: tuple[FannedOut, ...]
    due_in: timedelta | None


class Along(NamedTuple):
    """What a claim says along the way: what the worker polls for, and whether to wake the others of its channels.

    awake: contexts and types, if a lease is to be renewed; no type means every type.
    """

    awake: tuple[tuple[str, str | None], ...] = ()
    rings: bool = False


NOTHING_ALONG: Final = Along()
AWAKE_FOR: Final = timedelta(seconds=1)
"""How long a lease lets publishers be silent, if it is not renewed: so much later is seen what a dead worker misses."""


class Bell(Protocol):
    """What a worker says of itself to publishers, who need not notify while it is awake."""

    async def hold(self, served: Sequence[tuple[str, str | None]]) -> bool:
        """Renew the lease if rows come in fast, and wake the others; answers whether. For a worker without room."""
        ...

    async def withdraw(self, contexts: Sequence[str], *, rings: bool = False) -> None:
        """Take the lease back, for publishers to come; and wake the others, if so."""
        ...

    async def is_crowded(self) -> bool:
        """Whether publishers wait for each other, because they notify."""
        ...

    async def is_quiet(self, contexts: Sequence[str]) -> bool:
        """Whether everybody who trusted the lease has committed; if so, the others have been woken."""
        ...


class Claims(Bell, Protocol):
    """The connection that claims."""

    async def subscribe(self, subscriptions: Sequence[Subscription], *, replace: bool) -> list[Subscription]:
        """Record what this worker handles; answer what is on record that it lacks (then nothing was recorded)."""
        ...

    async def live_far_below(self) -> int | None:
        """The live generation, if this worker's is on no record and not the next one: a slip, perhaps. Else none."""
        ...

    async def claim(self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG) -> list[ClaimAnswer]:
        """Claim, in one round trip; one answer for each ask."""
        ...

    async def look_ahead_and_claim(
        self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG
    ) -> tuple[Outlook, list[ClaimAnswer]]:
        """Split broadcasts, see when the next row falls due, then claim; in one round trip.

        In this order a row is either due when the claim looks, or among those that the outlook speaks of.
        """
        ...

    async def enter_quarantine(self, context: str) -> bool:
        """Become the one worker of this context that waits for the quiet, for a row that must run alone; if none is."""
        ...

    async def leave_quarantine(self, context: str) -> None:
        """Let another one."""
        ...

    async def claim_aside(self, ask: ClaimAsk, aside: Delivery) -> ClaimAnswer:
        """Claim the row that this delivery was of, which was set aside; nothing if it is not what it was."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Reception(Protocol):
    """Receives references to rows beside the claim loop, whose claims then take those rows."""

    async def run(self, on_received: Callable[[], None]) -> None:
        """Receive until cancelled; calls back when there may be something to claim. Until then, nothing is received."""
        ...

    def heard(self) -> None:
        """The worker was woken: perhaps because rows are to be taken from somewhere else."""
        ...

    @property
    def takes_from(self) -> str:
        """The broker from which references come in; `postgres` while none does."""
        ...

    @property
    def has_fallen_back(self) -> bool:
        """Whether references should come in and do not, so that rows are claimed without."""
        ...

    def down_for(self) -> float:
        """For how many seconds that has been so."""
        ...


class Conclusion(NamedTuple):
    """What became of a delivery, to be written: the outcome, and the plain handlers that took effect.

    A tuple, for a busy worker makes thousands a second. `ran` names every handler that was run, for whoever watches.
    """

    delivery: Delivery
    outcome: Outcome
    succeeded: tuple[str, ...] = ()
    ran: tuple[str, ...] = ()


class SettleRefusedError(Exception):
    """The server refused to write these conclusions together; one by one may work."""


class Settlements(Protocol):
    """The connection that settles what was not settled in a lane."""

    async def settle(self, conclusions: Sequence[Conclusion]) -> set[UUID]:
        """Write them, no row twice, in one fenced transaction; answer the rows whose lease was lost before.

        Raises:
            SettleRefusedError: the server refused; nothing was written.
        """
        ...

    async def stood(self, doubted: Sequence[Conclusion]) -> dict[UUID, Conclusion]:
        """Which of these, that were sent and not answered, the rows say were written; by row."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Gate(StrEnum):
    """What the dedup gate says to a handler."""

    RUN = "run"  # the key is yours
    HANDLED = "handled"  # the key was taken before
    FENCED = "fenced"  # the claim is no longer yours
    BUSY = "busy"  # somebody holds the key uncommitted, and takes long


class GroupVoidError(Exception):
    """The transaction of a group is gone, through the fault of the handler that ran last; nothing of it is kept."""


class BriefTransaction(Transaction, Protocol):
    """What a handler is given that runs beside others: one statement, and nothing else."""

    overran: bool
    """Whether it wanted more than that; what was done in the transaction cannot be kept then."""

    refusal: str | None
    """The SQLSTATE with which its statement was refused, if it was."""

    @property
    def is_waiting(self) -> bool:
        """Whether its statement is still to be carried out."""
        ...

    def end(self) -> None:
        """Its handler has ended."""
        ...


class Errands(Protocol):
    """The statements of several handlers that run at the same time in one transaction."""

    on_errand: Callable[[], None]
    """Called when there is one, or when somebody wanted more than one."""

    @property
    def are_waiting(self) -> bool:
        """Whether there are some to be carried out."""
        ...

    def transaction(self) -> BriefTransaction:
        """For one more handler."""
        ...

    async def carry_out(self, within: float) -> BriefTransaction | None:
        """Carry out what waits, in one round trip. Answers whose statement was refused: then nobody gets an answer.

        Raises:
            ErrandsVoidError: nothing can be kept, and nobody is to blame.
            TimeoutError: there was no answer in time; the lane is to be dropped.
            SubstrateLostError: the connection is lost.
        """
        ...

    def give_up(self) -> None:
        """Have `carry_out`, if it is waiting, wait no longer: as if there was no answer in time."""
        ...


class ErrandsVoidError(Exception):
    """The server has forgotten what was prepared on the connection. When it is asked again it will be prepared."""


class Lane(Protocol):
    """One connection on which transactional handlers run; several may share a commit.

    begin → (the handler) → accept or undo, again and again, then commit. Whatever fails in between leaves the group
    void: `abandon` it. What `accept` has to ask of the server is asked with the next `begin` or `commit`, and so is
    whether the transaction is still the one the group began: a task that outlives its handler may have ended it.
    """

    @property
    def transaction(self) -> Transaction:
        """What the handler that was begun last is given."""
        ...

    @property
    def was_plain(self) -> bool:
        """Whether that handler has left nothing in the session that another one might find."""
        ...

    @property
    def was_brief(self) -> bool:
        """Whether it has sent one statement at most, with a small answer, and nothing else."""
        ...

    @property
    def answered_after(self) -> float:
        """How many seconds it has waited for answers to its statements."""
        ...

    def errands(self) -> Errands:
        """For the brief handlers of a group that was begun together, to be run at the same time."""
        ...

    async def begin_together(self, runs: Sequence[tuple[Delivery, Handler]], only: str | None = None) -> bool:
        """Open a group without savepoints for these rows and their handlers; false: `abandon` it, nothing was done.

        only: the one handler of all of them, if there is to be no other group of it: not on this database, by anybody
        who says so too.
        Then run each, `accept` it, and `commit_together` those that ran. If one fails, none of them is to be kept.
        """
        ...

    async def undo_together(self) -> None:
        """Take all of them back; raises `GroupVoidError` if there is nothing to take back."""
        ...

    async def commit_together(self, count: int) -> None:
        """Settle the first so many of `begin_together`, those that have run, and commit.

        Raises:
            CommitRefusedError: see `commit`; or a row or a key of it has become somebody else's.
        """
        ...

    async def begin(self, delivery: Delivery, handler_name: str) -> Gate:
        """Open the group if it is not, set a savepoint, lock the row and pass the gate.

        Raises:
            AcceptRefusedError: a handler before it, most likely the last, left a transaction nobody can go on in.
        """
        ...

    def accept(self) -> None:
        """Keep what the handler wrote, as far as can be told from here.

        Raises:
            TransactionMisusedError: it left the transaction in a state that cannot be kept; `undo` it.
            GroupVoidError: it ended the transaction.
        """
        ...

    async def undo(self) -> None:
        """Go back to where `begin` started; raises `GroupVoidError` if there is nothing to go back to."""
        ...

    async def commit(self, conclusions: Sequence[Conclusion]) -> set[UUID]:
        """Settle these and commit; answer the rows whose lease was lost before.

        Raises:
            CommitRefusedError: the server refused the commit, or it is another transaction than the group's; nothing
                of the group is kept.
        """
        ...

    async def stood(self, doubted: Sequence[Conclusion]) -> dict[UUID, Conclusion]:
        """Which of these, that were sent and not answered, the rows say were written; by row."""
        ...

    async def abandon(self) -> None:
        """Roll everything back."""
        ...

    async def drop(self) -> None:
        """Cut the connection, whatever runs on it; the next `begin` opens another."""
        ...


class CommitRefusedError(Exception):
    """The commit of a group failed: something a handler left to be checked at the end. The cause says what."""


class AcceptRefusedError(Exception):
    """With what a handler left behind, nobody can go on; run alone, its commit will say why. The cause says it too."""


class Ear(Protocol):
    """The connection that listens, and by whose life the worker is known to live."""

    async def open(self) -> None:
        """Connect, show that this worker lives, and LISTEN."""
        ...

    async def hear(self, for_at_most: timedelta) -> bool:
        """Wait for a notification; afterwards, or when the time is up, ask the session whether it lives."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class Keeper(Protocol):
    """The connection that keeps leases: its own by renewal, others' by taking back what is abandoned."""

    async def open(self) -> None:
        """Connect, and show a second time that this worker lives."""
        ...

    async def renew(self, leases: Collection[Lease]) -> set[Lease]:
        """Start the leases anew; answer those that still stand."""
        ...

    async def reap(self) -> list[Reaped]:
        """Take back claims that nobody works on; as many as one call takes, so ask until none is left."""
        ...

    async def mend_bell(self) -> int:
        """Wake everybody where a worker that said it was awake is not heard of any more; answers how many leases."""
        ...

    async def release_unknown(self, known: Collection[Lease], older_than: timedelta) -> int:
        """Give back this worker's claims, older than this, that are not among the known; answers how many."""
        ...

    async def fail_unhandled(self, context: str) -> Unhandled | None:
        """Send rows that no handler is subscribed to, and that waited long enough, to the DLQ."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
