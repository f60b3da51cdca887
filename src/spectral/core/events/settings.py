"""Option groups that validate themselves. The environment is an argument; only the top of a program reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.channels import DEFAULT_CHANNEL, PROCESSING_CLASS_PATTERN, channel_for
from spectral.core.events.envelope import CONTEXT_PATTERN, DEFAULT_CONTEXTS
from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

GENERATION_VARIABLE: Final = "SPECTRAL_GENERATION"
CONTEXTS_VARIABLE: Final = "SPECTRAL_CONTEXTS"
ACCEPT_VARIABLE: Final = "SPECTRAL_ACCEPT_GENERATIONS"
CLASSES_VARIABLE: Final = "SPECTRAL_CLASSES"
DIRECT_VARIABLE: Final = "SPECTRAL_DIRECT_URL"
SERVICE_VARIABLES: Final = ("SPECTRAL_SERVICE", "OTEL_SERVICE_NAME")
ENVIRONMENT_VARIABLE: Final = "SPECTRAL_ENVIRONMENT"
URL_VARIABLES: Final = ("SPECTRAL_DATABASE_URL", "DATABASE_URL")
_LIBPQ_VARIABLES: Final = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGDATABASE", "PGUSER", "PGSERVICE")
_MAY_BE_NOTHING: Final = frozenset({"grace", "unhandled_after", "start", "stop", "patience", "degraded_after"})
_SMALL_BATCH: Final = 50
MAX_RELEASE: Final = 10**15
"""The highest generation of a release. A column would take more, but then there may be no number for the next one."""

_MAX_GENERATION_DIGITS: Final = 40  # some leading zeros are a habit, thousands of digits are an accident


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who speaks, on every log line, span, metric and report.

    From the environment: `SPECTRAL_SERVICE`, or what OpenTelemetry reads, `OTEL_SERVICE_NAME`; `SPECTRAL_ENVIRONMENT`.
    """

    generation: int
    service: str = "spectral"
    environment: str = "unset"

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], generation: int, service: str = "spectral") -> Identity:
        """Read the variables; `service` is who it is if none says."""
        named = (environ.get(variable, "").strip() for variable in SERVICE_VARIABLES)
        return cls(
            generation=generation,
            service=next((name for name in named if name), service),
            environment=environ.get(ENVIRONMENT_VARIABLE, "").strip() or "unset",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSettings:
    """What a publisher stamps on every row, and what it lets through.

    `require_transaction=False` lets `publish` run on an idle or autocommit connection. In autocommit the event is then
    a transaction of its own, tied to nothing, and `publish_many` one transaction for every 5,000. A driver that begins
    a transaction by itself, as psycopg and SQLAlchemy do elsewhere, leaves it to the caller to commit.
    """

    generation: int
    contexts: frozenset[str] = DEFAULT_CONTEXTS
    require_transaction: bool = True

    def __post_init__(self) -> None:
        if type(self.generation) is not int or not 0 <= self.generation <= MAX_RELEASE:
            raise ConfigurationError(
                f"generation must be a whole number between 0 and {MAX_RELEASE}, not {self.generation!r}"
            )
        contexts: object = self.contexts
        if isinstance(contexts, str):  # its letters would pass for a set of names
            raise ConfigurationError(f"contexts must be a set of names, not the text {contexts[:40]!r}")
        wrong = sorted(context for context in self.contexts if re.fullmatch(CONTEXT_PATTERN, context) is None)
        if wrong or not self.contexts:
            raise ConfigurationError(
                f"contexts must be lower-case names such as 'orders', not {wrong}; "
                f"set {CONTEXTS_VARIABLE}=orders,billing"
            )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> PublishSettings:
        """Read `SPECTRAL_GENERATION` (required) and `SPECTRAL_CONTEXTS` (comma-separated names).

        Raises:
            ConfigurationError: one is missing or makes no sense; the message says what to set.
        """
        return cls(
            generation=parse_generation(environ.get(GENERATION_VARIABLE)),
            contexts=parse_contexts(environ.get(CONTEXTS_VARIABLE)),
        )


def parse_contexts(text: str | None) -> frozenset[str]:
    """The declared contexts from their variable, comma-separated; the default ones if there is none."""
    return frozenset(name.strip() for name in (text or "").split(",") if name.strip()) or DEFAULT_CONTEXTS


def parse_generation(text: str | None, variable: str = GENERATION_VARIABLE) -> int:
    """The deployment generation from its variable.

    Raises:
        ConfigurationError: it is missing, or not a whole number from 0.
    """
    if text is None or not text.strip():
        raise ConfigurationError(
            f"{GENERATION_VARIABLE} is not set: set it to the generation of this deployment, "
            f"a whole number that grows with every release, such as {GENERATION_VARIABLE}=1"
        )
    cleaned = text.strip()
    # isascii: int() would take other scripts' digits, and underscores
    digits = cleaned.isascii() and cleaned.isdigit() and len(cleaned) <= _MAX_GENERATION_DIGITS
    if not digits or int(cleaned) > MAX_RELEASE:
        raise ConfigurationError(
            f"{variable}={cleaned[:40]!r} is not a generation: "
            f"set it to a whole number between 0 and {MAX_RELEASE}, such as {variable}=1"
        )
    return int(cleaned)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTimes:
    """How long a worker waits for what. The defaults are the protocol's; tests shorten them.

    poll: the safety poll that always runs; poll_deaf: the same while the ear is down.
    heartbeat: how often the ear's session is asked whether it lives; answer: how long anything of the substrate may
        take to answer before its connection is given up.
    degraded_after: how long the ear may be down before health says so.
    reconnect, reconnect_cap: the ear's backoff; the hands' is the same but never longer than `poll_deaf`.
    lease: how long a claim stands without renewal; grace: how long after a claim its worker may show no sign of life;
        reap: how often to look for such claims; unhandled_after: how long a row waits for a handler to appear.
    start: how long a worker that ends by itself (`drained`, `once`) waits for a database that is not there.
    stop: how long running handlers may take when the worker stops; patience: how long a handler may take to obey its
        cancellation.
    """

    poll: timedelta = timedelta(seconds=15)
    poll_deaf: timedelta = timedelta(seconds=5)
    heartbeat: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=8)
    degraded_after: timedelta = timedelta(seconds=30)
    reconnect: timedelta = timedelta(seconds=1)
    reconnect_cap: timedelta = timedelta(seconds=30)
    lease: timedelta = timedelta(seconds=300)
    grace: timedelta = timedelta(seconds=5)
    reap: timedelta = timedelta(seconds=4)
    unhandled_after: timedelta = timedelta(seconds=300)
    start: timedelta = timedelta(seconds=60)
    stop: timedelta = timedelta(seconds=30)
    patience: timedelta = timedelta(seconds=10)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given: object = getattr(self, name)
            if not isinstance(given, timedelta) or given < timedelta(0):
                raise ConfigurationError(f"{name} must be a timedelta that is not negative, not {given!r}")
            if not given and name not in _MAY_BE_NOTHING:
                raise ConfigurationError(f"{name} must be longer than nothing: the worker would not come to rest")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker is and how much it takes on.

    generation: its own; rows of another are never touched unless `accept_generations` names theirs (legacy drain).
    classes: the processing classes it serves beside the plain channel.
    name: what its claims are signed with. Leave it out: two workers of one name would pass for one, and each would take
        the other's claims for claims of its own that it has forgotten.
    lanes: transactions at once, one connection each, for handlers that take the transaction.
    batch: rows that share a commit at most; `commit_within` ends a group earlier.
    concurrency: plain handlers at once.
    only_channel: one channel instead of those of its generations and classes.
    """

    generation: int
    accept_generations: frozenset[int] = frozenset()
    classes: tuple[str, ...] = ()
    contexts: frozenset[str] = DEFAULT_CONTEXTS
    name: str = ""
    lanes: int = 4
    batch: int = 200
    concurrency: int = 50
    commit_within: timedelta = timedelta(milliseconds=50)
    replace_subscriptions: bool = False
    times: WorkerTimes = WorkerTimes()
    only_channel: str | None = None

    def __post_init__(self) -> None:
        PublishSettings(generation=self.generation, contexts=self.contexts)  # the same rules, the same words
        for generation in self.accept_generations:
            PublishSettings(generation=generation)
        for name in ("lanes", "batch", "concurrency"):
            given: object = getattr(self, name)
            if type(given) is not int or given < 1:
                raise ConfigurationError(f"{name} must be a whole number of at least 1, not {given!r}")
        classes: object = self.classes
        if isinstance(classes, str):  # its letters would pass for a list of names
            raise ConfigurationError(f"classes must be a tuple of names, not the text {classes[:40]!r}")
        try:
            self.channels()
        except ValueError as refusal:
            raise ConfigurationError(str(refusal)) from None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> WorkerSettings:
        """Read `SPECTRAL_GENERATION`, `SPECTRAL_CONTEXTS`, `SPECTRAL_ACCEPT_GENERATIONS` and `SPECTRAL_CLASSES`.

        Raises:
            ConfigurationError: one is missing or makes no sense; the message says what to set.
        """
        accepted = (each for each in environ.get(ACCEPT_VARIABLE, "").split(",") if each.strip())
        classes = (each.strip() for each in environ.get(CLASSES_VARIABLE, "").split(","))
        return cls(
            generation=parse_generation(environ.get(GENERATION_VARIABLE)),
            contexts=parse_contexts(environ.get(CONTEXTS_VARIABLE)),
            accept_generations=frozenset(parse_generation(each, ACCEPT_VARIABLE) for each in accepted),
            classes=tuple(each for each in classes if each),
        )

    @property
    def small_batch(self) -> int:
        """Rows that share a commit at most while each has a savepoint, and round trips, of its own.

        More of them would save little; larger groups are for rows that share the round trips as well.
        """
        return min(self.batch, _SMALL_BATCH)

    def generations(self) -> tuple[int, ...]:
        """The generations whose rows it runs, its own first."""
        return (self.generation, *sorted(self.accept_generations - {self.generation}))

    def channels(self) -> tuple[str, ...]:
        """The channels it listens on: those of its generations, plain and of its classes."""
        if self.only_channel is not None:
            return (self.only_channel,)
        return tuple(
            channel_for(generation, processing_class)
            for generation in self.generations()
            for processing_class in (None, *self.classes)
        )

    def claimed_channels(self) -> tuple[str, ...]:
        """The channels whose rows it claims.

        Rows inserted without a channel carry a generation too. Their channel is nobody's, so nobody listens on it: the
        safety poll finds them.
        """
        return (self.only_channel,) if self.only_channel is not None else (*self.channels(), DEFAULT_CHANNEL)

    def for_channel(self, channel: str) -> WorkerSettings:
        """The same worker, on one channel.

        Raises:
            ConfigurationError: the channel belongs to a generation that this worker does not run.
        """
        generations = "|".join(str(each) for each in self.generations())
        classes = PROCESSING_CLASS_PATTERN.strip("^$")
        if channel != DEFAULT_CHANNEL and re.fullmatch(rf"outbox_gen_({generations})(_{classes})?", channel) is None:
            raise ConfigurationError(
                f"channel {channel[:80]!r} is not of generation {self.generation}; "
                f"listen on {self.channels()[0]!r} or one of its classes"
            )
        return replace(self, only_channel=channel)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """How to reach the database. Neither way is ever shown.

    dsn: for everything; may lead through a pooler in session mode. Empty: libpq reads its own PG* variables.
    direct_dsn: for the connections that listen and show life; must not lead through a transaction pooler.
    """

    dsn: str = field(repr=False)
    direct_dsn: str = field(default="", repr=False)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> DatabaseSettings:
        """Read `SPECTRAL_DATABASE_URL`, `DATABASE_URL` or the PG* variables, and `SPECTRAL_DIRECT_URL`.

        Raises:
            ConfigurationError: none of them is set.
        """
        direct = _libpq_url(environ.get(DIRECT_VARIABLE, ""))
        for variable in URL_VARIABLES:
            if url := environ.get(variable):
                return cls(dsn=_libpq_url(url), direct_dsn=direct)
        if any(environ.get(variable) for variable in _LIBPQ_VARIABLES):
            return cls(dsn="", direct_dsn=direct)
        raise ConfigurationError("no database is named; set SPECTRAL_DATABASE_URL, DATABASE_URL or the PG* variables")


def _libpq_url(url: str) -> str:
    """SQLAlchemy names its driver in the scheme; libpq does not know such a scheme."""
    return re.sub(r"^postgres(ql)?\+\w+://", "postgresql://", url)
