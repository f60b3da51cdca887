"""Which broker the relay sends to and workers receive from, if any."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

RELAY_VARIABLE: Final = "SPECTRAL_RELAY"
BROKER_URL_VARIABLE: Final = "SPECTRAL_BROKER_URL"
REPLICAS_VARIABLE: Final = "SPECTRAL_BROKER_REPLICAS"
LATE_VARIABLE: Final = "SPECTRAL_RELAY_LATE"

NO_BROKER: Final = "postgres"
"""The mode in which workers claim from the database, without a broker."""

_MAX_REPLICAS: Final = 5  # of a JetStream
_MAX_LATE: Final = timedelta(hours=1)
_LONGEST_NUMBER: Final = 6


class BrokerKind(StrEnum):
    """The brokers there are adapters for; also the database's word for them."""

    NATS = "nats"
    REDIS = "redis"


_SCHEMES: Final = {BrokerKind.NATS: ("nats", "tls"), BrokerKind.REDIS: ("redis", "rediss", "unix")}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How to reach the broker, and what is asked of it. The URL is never shown.

    url: for NATS several may be given, separated by commas: servers of one cluster.
    answer: how long the broker may take to answer before its connection is given up.
    redeliver_after: how long a message may be handed out without being acknowledged before somebody else gets it.
    late: how long a row may be due before a worker claims it from the database, whether its message comes or not.
    replicas: copies of what a NATS cluster keeps.
    """

    kind: BrokerKind
    url: str = field(repr=False)
    answer: timedelta = timedelta(seconds=5)
    redeliver_after: timedelta = timedelta(seconds=30)
    late: timedelta = timedelta(seconds=30)
    replicas: int = 1

    def __post_init__(self) -> None:
        kinds = " or ".join(kind.value for kind in BrokerKind)
        if self.kind not in set(BrokerKind):
            raise ConfigurationError(f"a broker is {kinds}, not {str(self.kind)[:40]!r}; set {RELAY_VARIABLE}")
        object.__setattr__(self, "kind", BrokerKind(self.kind))  # its name will do
        schemes = tuple(f"{scheme}://" for scheme in _SCHEMES[self.kind])
        servers = [server.strip() for server in self.url.split(",")] if self.kind is BrokerKind.NATS else [self.url]
        if not all(server.startswith(schemes) and len(server) > server.index("://") + 3 for server in servers):
            raise ConfigurationError(
                f"the broker's URL must begin with {' or '.join(schemes)} for {self.kind}; set {BROKER_URL_VARIABLE}"
            )
        for name in ("answer", "redeliver_after", "late"):
            given: object = getattr(self, name)
            if not isinstance(given, timedelta) or given <= timedelta(0):
                raise ConfigurationError(f"{name} must be a timedelta longer than nothing, not {given!r}")
        if type(self.replicas) is not int or not 1 <= self.replicas <= _MAX_REPLICAS:
            raise ConfigurationError(
                f"replicas must be between 1 and {_MAX_REPLICAS}, not {self.replicas!r}; set {REPLICAS_VARIABLE}"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> BrokerSettings | None:
        """Read `SPECTRAL_RELAY` (nats, redis; none or postgres: no broker) and `SPECTRAL_BROKER_URL`.

        Also `SPECTRAL_RELAY_LATE` in seconds and `SPECTRAL_BROKER_REPLICAS`, if they are set.

        Raises:
            ConfigurationError: one is missing or makes no sense; the message says what to set.
        """
        kind = environ.get(RELAY_VARIABLE, "").strip().lower()
        if kind in {"", NO_BROKER}:
            return None
        if kind not in set(BrokerKind):
            known = ", ".join([*BrokerKind, NO_BROKER])
            raise ConfigurationError(f"{RELAY_VARIABLE}={kind[:40]!r} is not known; set it to one of {known}")
        url = environ.get(BROKER_URL_VARIABLE, "").strip()
        if not url:
            raise ConfigurationError(f"{RELAY_VARIABLE} names a broker but {BROKER_URL_VARIABLE} does not say where")
        late = _number(environ, LATE_VARIABLE, 30, int(_MAX_LATE.total_seconds()))
        return cls(
            kind=BrokerKind(kind),
            url=url,
            late=timedelta(seconds=late),
            replicas=_number(environ, REPLICAS_VARIABLE, 1, _MAX_REPLICAS),
        )


def _number(environ: Mapping[str, str], variable: str, otherwise: int, most: int) -> int:
    """A whole number of at least 1, from its variable."""
    text = environ.get(variable, "").strip()
    if not text:
        return otherwise
    digits = text.isascii() and text.isdigit() and len(text) <= _LONGEST_NUMBER
    if not digits or not 1 <= int(text) <= most:
        raise ConfigurationError(f"{variable}={text[:40]!r} must be a whole number between 1 and {most}")
    return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelaySettings:
    """How a relay goes about it. The defaults are the protocol's; tests shorten them.

    name: by which its lease of the bell is known; leave it out, and it gets one that nobody else has.
    batch: rows that are taken and sent together. most_waiting: messages of a lane that may wait at the broker.
    poll: how long it sleeps at most. answer: how long the database may take to answer.
    grace: what was sent longer ago, in a lane of which nothing waits at the broker, is taken for lost.
    lost: what was sent longer ago is taken for lost in any case.
    """

    name: str = ""
    batch: int = 1_000
    most_waiting: int = 10_000
    poll: timedelta = timedelta(seconds=1)
    answer: timedelta = timedelta(seconds=8)
    grace: timedelta = timedelta(seconds=5)
    lost: timedelta = timedelta(minutes=5)
    reconnect: timedelta = timedelta(milliseconds=250)
    reconnect_cap: timedelta = timedelta(seconds=5)

    def __post_init__(self) -> None:
        for name in ("batch", "most_waiting"):
            given: object = getattr(self, name)
            if type(given) is not int or given < 1:
                raise ConfigurationError(f"{name} must be a whole number of at least 1, not {given!r}")
        for name in ("poll", "answer", "grace", "lost", "reconnect", "reconnect_cap"):
            given = getattr(self, name)
            if not isinstance(given, timedelta) or given <= timedelta(0):
                raise ConfigurationError(f"{name} must be a timedelta longer than nothing, not {given!r}")
