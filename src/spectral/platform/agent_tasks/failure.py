"""How a run ends other than by returning.

NeedsApproval           raised or returned by an executor: a person has to decide first
TaskCancelled           raised by `TaskRun.raise_if_cancelled`: the executor stops as it was asked to
AgentTaskError          something is wrong with a run
├── RunLostError        the run is no longer this worker's; nothing it writes is kept
└── AgentTaskRetryError the run failed in a way that may pass; the dispatch is tried again
"""

from __future__ import annotations

from typing import Any

from spectral.core.events import SpectralError


class NeedsApproval(Exception):  # noqa: N818  no error: the executor has come to where a person decides
    """A person has to decide before the task goes on.

    Args:
        question: what they are asked, at most 4,000 characters.
        checkpoint: JSON that the run after the approval begins with; what was saved before, unless told.
    """

    def __init__(self, question: str, *, checkpoint: Any = None) -> None:  # noqa: ANN401  any JSON
        super().__init__(question)
        self.question = question
        self.checkpoint = checkpoint


class TaskCancelled(Exception):  # noqa: N818  no error: the executor does as it was told
    """The executor stops because somebody wants the task cancelled."""


class AgentTaskError(SpectralError):
    """Something is wrong with a run of an agent task."""


class RunLostError(AgentTaskError):
    """The run is no longer this worker's: another one has taken the task over, or it has ended."""


class AgentTaskRetryError(AgentTaskError):
    """The run failed and the task is queued again; raised so that the dispatch is retried after a pause."""
