"""One delivery of one task: begin a run unless somebody is at it, watch over the executor, write down how it ended.

    begin ── over ──▶ nothing to do, the dispatch is delivered
      │ └─── busy ──▶ wait: whoever is at it ends, or its heart stops
      ▼
    run: executor beside heartbeats, until it returns, is cancelled, takes too long, or the run is lost
      ▼
    finish, fenced: succeeded | waiting_for_approval | cancelled | failed (queued again, or for good) | released

A run that is lost is never finished, only left: whoever took the task over speaks for it now. While the database is out
of sight nobody says so, and the clock has to: an executor is stopped early enough to end before an heir may begin.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from spectral.core.events import ConfigurationError, SubstrateLostError
from spectral.core.events.describe import describe
from spectral.core.events.failure import HandlerTimeoutError
from spectral.core.events.retry import Verdict, classify
from spectral.platform.agent_tasks.failure import AgentTaskRetryError, NeedsApproval, RunLostError, TaskCancelled
from spectral.platform.agent_tasks.run import TaskRun
from spectral.platform.agent_tasks.store import Busy, Ending, Over
from spectral.platform.agent_tasks.values import MAX_QUESTION, RunTimes, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.events import DeliveryContext
    from spectral.platform.agent_tasks.run import Executor
    from spectral.platform.agent_tasks.store import RunStore
    from spectral.platform.agent_tasks.values import AgentTask

_LOOK_AGAIN: Final = timedelta(seconds=1)
_RELEASE_WITHIN: Final = 0.8
"""A worker that stops gives its handlers a second to obey; what is not given back by then is found by its heartbeat."""


class _Why(Enum):
    """Why an executor was stopped."""

    LOST = auto()
    CANCELLED = auto()
    TOO_LONG = auto()


async def carry_out(store: RunStore, executor: Executor, delivery: DeliveryContext, times: RunTimes) -> None:
    """Run the task, if it is to be run.

    Raises:
        AgentTaskRetryError: the run failed and the task is queued again.
        TerminalHandlerError: there is no such task.
        SubstrateLostError: the database cannot be reached.
    """
    clock = asyncio.get_running_loop().time
    while True:
        try:
            asked_at = clock()
            begun = await store.begin(delivery.worker, delivery.event_id)
            match begun:
                case Over(status):
                    delivery.logger.info("agent task not run", status=status.value, agent_task_id=str(store.task_id))
                    return None
                case Busy(wait):
                    await asyncio.sleep(min(wait, _LOOK_AGAIN).total_seconds())
                case task:
                    return await _Supervision(TaskRun(task, delivery, store), store, times).run(executor, asked_at)
        except RunLostError:
            delivery.logger.warning("agent task run lost", agent_task_id=str(store.task_id))
            store.renew_token()


class _Supervision:
    """Watches over one run."""

    def __init__(self, run: TaskRun, store: RunStore, times: RunTimes) -> None:
        self._run = run
        self._store = store
        self._times = times
        self._clock = asyncio.get_running_loop().time
        self._leave_at = 0.0
        self._told_at: float | None = None

    async def run(self, executor: Executor, asked_at: float) -> None:
        """Execute and finish; the run was asked for at that time. Raises as `carry_out`, and `RunLostError`."""
        self._lives_since(asked_at)
        if self._clock() >= self._leave_at:
            raise RunLostError("the database took so long to begin the run that it may be over")
        work = asyncio.get_running_loop().create_task(
            _caught(executor, self._run.task, self._run), name=f"agent task {self._run.task.id}"
        )
        try:
            why = await self._watch(work)
        except BaseException:  # whatever it is, nobody watches the executor any more
            await self._give_back(work)
            raise
        ending = await self._end(work, why)
        status = await self._store.finish(ending)
        self._run.delivery.logger.info(
            "agent task run ended", agent_task_id=str(self._run.task.id), fence=self._run.fence, status=status.value
        )
        if status is TaskStatus.QUEUED:
            task = self._run.task
            raise AgentTaskRetryError(f"attempt {task.attempt} of {task.max_attempts} failed: {ending.detail}")

    async def _watch(self, work: asyncio.Task[object]) -> _Why | None:
        """Beat until the executor has ended; answers why it has to be stopped, if it has."""
        end = self._clock() + self._times.run.total_seconds()
        while True:
            pause = min(self._times.beat.total_seconds(), self._leave_at - self._clock())
            done, _ = await asyncio.wait({work}, timeout=max(pause, 0.0))
            if done:
                return None
            asked_at = self._clock()
            try:
                async with asyncio.timeout_at(self._leave_at):
                    await self._run.beat()
                self._lives_since(asked_at)
            except (RunLostError, TimeoutError):
                return _Why.LOST
            except SubstrateLostError:
                if self._clock() >= self._leave_at:
                    return _Why.LOST
            if self._has_been_told_long_ago():
                return _Why.CANCELLED
            if self._clock() >= end:
                return _Why.TOO_LONG

    def _lives_since(self, asked_at: float) -> None:
        """The database was asked then, and has answered: others wait for the ttl from then on, or longer."""
        self._leave_at = asked_at + (self._times.ttl - self._times.patience).total_seconds()

    def _has_been_told_long_ago(self) -> bool:
        if not self._run.cancel_requested:
            return False
        self._told_at = self._told_at or self._clock()
        return self._clock() - self._told_at >= self._times.stop.total_seconds()

    async def _end(self, work: asyncio.Task[object], why: _Why | None) -> Ending:
        """How it ended, once it has."""
        if why is not None and not await _stopped(work, self._times.patience.total_seconds()):
            if why is _Why.LOST:
                raise HandlerTimeoutError("the run is over, and its executor does not obey its cancellation")
            # It runs on, so it must not be begun again.
            return _failed(HandlerTimeoutError("the executor did not obey its cancellation"), retry=False)
        if why is _Why.LOST:
            raise RunLostError("the run is over")
        return self._ending(work.result(), why)

    def _ending(self, result: object, why: _Why | None) -> Ending:
        match result:
            case NeedsApproval():
                return _asked(result)
            case BaseException():
                return self._failure(result, why)
            case None:
                return Ending(outcome="succeeded")
            case str() if result:
                return Ending(outcome="succeeded", detail=result)
            case _:
                wrong = (
                    f"an executor returns a reference as text, NeedsApproval or nothing, not {type(result).__name__}"
                )
                return _failed(ConfigurationError(wrong), retry=False)

    def _failure(self, error: BaseException, why: _Why | None) -> Ending:
        if isinstance(error, RunLostError):
            raise error
        if isinstance(error, asyncio.CancelledError | TaskCancelled) and self._run.cancel_requested:
            return Ending(outcome="cancelled")
        if why is _Why.TOO_LONG:
            seconds = self._times.run.total_seconds()
            return _failed(HandlerTimeoutError(f"did not return within {seconds:g} s"), retry=True)
        return _failed(error, retry=classify(error) is not Verdict.TERMINAL, given=self._run.task.input)

    async def _give_back(self, work: asyncio.Task[object]) -> None:
        """The worker stops, or its lease is lost. What cannot be given back in time is found by its heartbeat."""
        with suppress(TimeoutError, SubstrateLostError, RunLostError):
            async with asyncio.timeout(_RELEASE_WITHIN):
                if await _stopped(work, _RELEASE_WITHIN / 2):
                    ending = self._released(work.result())
                    await self._store.finish(ending, patiently=False)

    def _released(self, result: object) -> Ending:
        """An executor that came to its end in the last moment has done so."""
        if isinstance(result, asyncio.CancelledError):
            return Ending(outcome="released", detail="WorkerLostError: the worker was stopped in the middle of it")
        return self._ending(result, None)


def _asked(asked: NeedsApproval) -> Ending:
    question = str(asked.question).strip()
    if not question or len(question) > MAX_QUESTION:
        wrong = f"a question for approval has 1 to {MAX_QUESTION} characters, not {len(question)}"
        return _failed(ConfigurationError(wrong), retry=False)
    return Ending(outcome="waiting_for_approval", detail=question, checkpoint=asked.checkpoint)


def _failed(error: BaseException, *, retry: bool, given: Mapping[str, object] | None = None) -> Ending:
    """What is kept of it, without what it quotes of the task's input."""
    # An executor is free to change what it was given, even into what is no JSON.
    quotable = None if given is None else json.dumps(given, default=str, ensure_ascii=False)
    return Ending(outcome="failed", detail=describe(error, payload=quotable), retry=retry)


async def _stopped(work: asyncio.Task[object], patience: float) -> bool:
    """Cancel it, and answer whether it obeyed in time."""
    work.cancel()
    done, _ = await asyncio.wait({work}, timeout=patience)
    return bool(done)


async def _caught(executor: Executor, task: AgentTask, run: TaskRun) -> object:
    """What it returns or raises, as a value: an exit raised by an executor must not end the event loop."""
    try:
        return await executor(task, run)
    except BaseException as error:  # noqa: BLE001  see above
        return error
