"""Blame: who has failed when a transaction is not kept, and what becomes of the row.

Here lives the invariant that a row stays alive as long as one of the handlers that lost what they did may be retried,
whoever it was that lost it for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.events.delivery.dispatch import conclude, may_pass
from spectral.core.events.delivery.group import CONFLICTS
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.delivery.group import Group, VoidedError
    from spectral.core.events.lease import Delivery


def is_conflict(error: BaseException, handlers: Sequence[Handler]) -> bool:
    """Whether a commit was refused because of others; not if one of these handlers must not be tried again for it.

    A deadlock too: whoever else was in it has gone on by now.
    """
    return sqlstate_of(error) in CONFLICTS and all(may_pass(error, handler) for handler in handlers)


def acquitted(desk: Desk, group: Group, voided: VoidedError) -> list[Delivery]:
    """The row whose handler has voided its group, if it is to be run again; if not, it has failed.

    Of a group without savepoints only the first row's key was written. Whoever has handled another one meanwhile,
    before it in the group or elsewhere, may be why it failed: behind its own gate it will be known.
    """
    if voided.undone and group.conclusions:
        return group.current
    (guilty,) = group.current
    desk.trust.failed(voided.handler.name)
    _fail(desk, guilty, group, (voided.handler, voided.error), None)
    return []


def cannot_commit(desk: Desk, group: Group, error: BaseException) -> None:
    """The only row's transaction. Whoever wrote in it has failed; whose doing it is nobody can tell: the last is named.

    If nobody did, it is nobody's failure, and what became of the row needs no transaction of the lane's.
    """
    (conclusion,) = group.conclusions
    if not group.kept:
        desk.conclude(conclusion.delivery, conclusion.outcome, conclusion.ran)
        return
    for handler in group.kept:
        desk.trust.failed(handler.name)
    _fail(desk, conclusion.delivery, group, (group.kept[-1], error), error)


def _fail(
    desk: Desk, delivery: Delivery, group: Group, named: tuple[Handler, BaseException], reason: BaseException | None
) -> None:
    """Conclude that one handler has failed, and that others lost what they did, for this reason or because of it."""
    failures = [named, *group.failures]
    undone = [(handler, reason) for handler in group.kept if handler is not named[0]]
    outcome = conclude(delivery, failures, desk.random, undone)
    desk.blame(delivery, named[0].name, named[1])
    done, _ = desk.run_before(delivery)
    ran = {*done, *(handler.name for handler, _ in (*failures, *undone))}
    handlers = desk.routes.handlers_for(delivery)
    desk.conclude(delivery, outcome, tuple(each.name for each in handlers if each.name in ran))
