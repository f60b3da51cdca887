"""Faults at named places of a worker, from a line of text: `claim.after=kill; handle.before=raise:3`.

A fault is `<failpoint>=<action>[:<argument>][@<n>]`; several are separated by semicolons. `@n` means the n-th time the
place is reached, instead of the first (kill, stop, exit) or every time (raise, lose, delay).

    raise[:times]     an error nobody expects; only so many times, if told
    lose[:times]      the error of a database that is gone
    delay:<seconds>   the whole process waits, its event loop included
    stop              SIGSTOP: the process stands still until somebody sends SIGCONT
    kill              SIGKILL
    exit[:code]       the process ends on the spot, with this code (1)
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

from spectral.core.events import failpoints
from spectral.core.events.failure import ConfigurationError, SubstrateLostError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

FAILPOINTS_VARIABLE: Final = "SPECTRAL_FAILPOINTS"

_EVERY_TIME: Final = 0
_ACTIONS: Final = {
    "raise": r"[1-9]\d{0,5}",
    "lose": r"[1-9]\d{0,5}",
    "delay": r"\d{1,6}(\.\d{1,6})?",
    "stop": "",
    "kill": "",
    "exit": r"\d{1,3}",
}
"""Each with the pattern of its argument."""

_ENDINGS: Final = frozenset({"stop", "kill", "exit"})
_FAULT: Final = re.compile(r"(?P<place>[^=]+)=(?P<action>\w+)(:(?P<argument>[^@]*))?(@(?P<nth>[1-9]\d{0,8}))?")


class InjectedFaultError(Exception):
    """Raised at a failpoint by a test."""


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is to happen at a place, when it is reached for the `first` to the `last` time; 0 is no end."""

    place: str
    action: str
    argument: str
    first: int
    last: int

    def is_due(self, times: int) -> bool:
        """Whether it is to happen now that the place was reached so often."""
        return self.first <= times and (self.last == _EVERY_TIME or times <= self.last)

    def happen(self) -> None:
        """Do it."""
        match self.action:
            case "raise":
                raise InjectedFaultError(f"a test raised this at {self.place}")
            case "lose":
                raise SubstrateLostError(f"a test lost the database at {self.place}")
            case "delay":
                time.sleep(float(self.argument))
            case "exit":
                os._exit(int(self.argument or "1"))
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case _:
                os.kill(os.getpid(), signal.SIGKILL)


def arm(text: str) -> None:
    """Have these faults happen in this process from now on, instead of whatever was armed before; none if empty.

    Raises:
        ConfigurationError: a place or an action is not known; the message names those that are. Nothing has changed.
    """
    faults = tuple(_parse(each.strip()) for each in text.split(";") if each.strip())
    failpoints.arm(_Armed(faults) if faults else None)


def disarm() -> None:
    """No more faults."""
    failpoints.arm(None)


@contextmanager
def injected(text: str) -> Generator[None]:
    """These faults, while the block runs; see `arm`."""
    arm(text)
    try:
        yield
    finally:
        disarm()


def arm_from(environ: Mapping[str, str]) -> bool:
    """Arm what `SPECTRAL_FAILPOINTS` names, if it is set; answers whether it is.

    Raises:
        ConfigurationError: see `arm`.
    """
    text = environ.get(FAILPOINTS_VARIABLE, "")
    if not text.strip():
        return False
    arm(text)
    return True


class _Armed:
    """Counts how often each place is reached, from whichever thread."""

    def __init__(self, faults: tuple[_Fault, ...]) -> None:
        self._faults = faults
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, place: str) -> None:
        with self._lock:
            self._times[place] += 1
            times = self._times[place]
        for fault in self._faults:
            if fault.place == place and fault.is_due(times):
                fault.happen()


def _parse(text: str) -> _Fault:
    found = _FAULT.fullmatch(text)
    if found is None:
        _refuse(text, "is no fault: write <failpoint>=<action>[:<argument>][@<n>], such as claim.after=kill")
    place, action, argument = found["place"].strip(), found["action"], found["argument"] or ""
    known = failpoints.NAMES + failpoints.RELAY_NAMES
    if place not in known:
        _refuse(text, f"{place!r} is no failpoint; there are {', '.join(known)}")
    if action not in _ACTIONS:
        _refuse(text, f"{action!r} is no action; there are {', '.join(_ACTIONS)}")
    wants_argument = action == "delay" or bool(argument)
    if wants_argument and re.fullmatch(_ACTIONS[action], argument) is None:
        _refuse(text, f"{action} cannot be given {argument!r}; write raise:3, lose:3, delay:0.5, exit:1, stop or kill")
    first = int(found["nth"] or 1)
    if action in ("raise", "lose") and argument:
        return _Fault(place, action, argument, first, first + int(argument) - 1)
    once = action in _ENDINGS or found["nth"] is not None
    return _Fault(place, action, argument, first, first if once else _EVERY_TIME)


def _refuse(text: str, why: str) -> NoReturn:
    raise ConfigurationError(f"{FAILPOINTS_VARIABLE}: {text[:80]!r}: {why}")
