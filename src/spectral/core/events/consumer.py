"""`Consumer`: which handlers of one context want which event types. Built when modules are imported, then frozen.

A handler that asks for the `Transaction` is transactional: its writes, its dedup record and the ack commit together.
One that does not is plain: it runs outside any transaction, many at once, under a lease that is renewed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypedDict, TypeVar, Unpack, cast

from pydantic import BaseModel, ValidationError

from spectral.core.events.envelope import CONTEXT_PATTERN, EVENT_TYPE_PATTERN, MAX_NAME_LENGTH
from spectral.core.events.failure import ConfigurationError, UndecodablePayloadError
from spectral.core.events.payload import decode_payload, has_long_number
from spectral.core.events.retry import DEFAULT_RETRY_POLICY, RetryPolicy
from spectral.core.events.signature import Signature, Source, name_of, read_signature

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spectral.core.events.lease import Delivery
    from spectral.core.events.protocols import DeliveryContext, Transaction

HANDLER_NAME_PATTERN: Final = r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+$"
"""Qualified by its scope: `platform.project_card`."""

DEFAULT_TIMEOUT: Final = timedelta(seconds=240)
"""Shorter than the lease, so that a handler that hangs is ended by its own worker."""

_VALIDATE_JSON: Final = getattr(BaseModel.model_validate_json, "__func__")  # noqa: B009  mypy sees a bound method
HandlerFunction = TypeVar("HandlerFunction", bound="Callable[..., Awaitable[None]]")


class HandlerOptions(TypedDict, total=False):
    """What a handler may say of itself.

    name: its qualified name, `<context>.<function>` unless told. With the event's idempotency key it is what makes the
        handler take effect once: keep it when the function is renamed.
    retry: how often and how patiently it is retried.
    timeout: how long one execution may take.
    concurrency: how many may run at once in one process; unlimited (by the handler) unless told.
    """

    name: str
    retry: RetryPolicy
    timeout: timedelta
    concurrency: int


@dataclass(frozen=True, slots=True, eq=False)
class Handler:
    """One function that handles events, and how.

    transactional: whether it runs in the transaction that settles its event.
    """

    name: str
    function: Callable[..., Awaitable[None]]
    signature: Signature
    retry: RetryPolicy
    timeout: timedelta
    concurrency: int | None
    timeout_seconds: float = field(init=False)
    transactional: bool = field(init=False)
    wants_context: bool = field(init=False)
    _only_payload: str | None = field(init=False, repr=False)
    _validates_itself: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Asked for every delivery, so worked out once.
        object.__setattr__(self, "timeout_seconds", self.timeout.total_seconds())
        object.__setattr__(self, "transactional", self.signature.transactional)
        object.__setattr__(self, "wants_context", self.signature.wants_context)
        names = [name for name, _ in self.signature.arguments]
        model = self.signature.model
        object.__setattr__(self, "_only_payload", names[0] if model and len(names) == 1 else None)
        own = getattr(model, "model_validate_json", None)
        object.__setattr__(self, "_validates_itself", getattr(own, "__func__", None) is not _VALIDATE_JSON)

    def is_exhausted(self, delivery: Delivery) -> bool:
        """Whether it has had its attempts, and the row lives on for the sake of a more patient handler.

        Not after the loss of a worker: that may have come before this handler's turn.
        """
        return delivery.attempts > self.retry.max_attempts and not delivery.suspect

    def call(
        self, delivery: Delivery, context: DeliveryContext | None, transaction: Transaction | None = None
    ) -> Awaitable[None]:
        """Decode what it asks for, and call it; the context is needed if `wants_context`.

        Raises:
            UndecodablePayloadError: the payload cannot be read.
            ValidationError: it does not fit the handler's model.
        """
        if self._only_payload is not None:  # most ask for nothing else
            return self.function(**{self._only_payload: self._parse(delivery)})
        arguments: dict[str, Any] = {}
        for name, source in self.signature.arguments:
            match source:
                case Source.PAYLOAD:
                    arguments[name] = self._parse(delivery)
                case Source.ENVELOPE:
                    arguments[name] = delivery.envelope()
                case Source.TRANSACTION:
                    arguments[name] = transaction
                case Source.CONTEXT:
                    arguments[name] = context
        return self.function(**arguments)

    def _parse(self, delivery: Delivery) -> object:
        model = self.signature.model
        assert model is not None  # noqa: S101  read_signature gives every payload parameter its model
        try:
            if has_long_number(delivery.payload):
                # Read as JSON, a number beyond every float would come out as infinity.
                return model.model_validate(decode_payload(delivery.payload))
            if self._validates_itself:
                return model.model_validate_json(delivery.payload)
            # What that comes to, without the call in between. Asked for anew: a model may be completed after its use.
            return model.__pydantic_validator__.validate_json(delivery.payload)
        except ValidationError:
            raise
        except (ValueError, RecursionError) as error:
            raise UndecodablePayloadError(f"the payload cannot be read as JSON ({type(error).__name__})") from None


class Subscription(NamedTuple):
    """What is recorded of a handler in `core.subscriptions`."""

    context: str
    event_type: str
    handler_name: str
    max_attempts: int


class Consumer:
    """The handlers of one context.

    Args:
        context: whose events these are: rows addressed to it, and broadcasts its types subscribe to.
        retry: the policy of handlers that name none.
        timeout: the timeout of handlers that name none.
    """

    def __init__(
        self, context: str, *, retry: RetryPolicy = DEFAULT_RETRY_POLICY, timeout: timedelta = DEFAULT_TIMEOUT
    ) -> None:
        if re.fullmatch(CONTEXT_PATTERN, context) is None:
            raise ConfigurationError(f"{context!r} is no context: it must be a lower-case name such as 'orders'")
        self.context = context
        self._retry = _policy(retry, f"of {context}")
        self._timeout = _positive(timeout, f"of {context}")
        self._by_name: dict[str, Handler] = {}
        self._by_type: dict[str, list[Handler]] = {}
        self._frozen = False

    def __repr__(self) -> str:
        return f"Consumer({self.context!r}, {len(self._by_name)} handlers)"

    def on(self, *event_types: str, **options: Unpack[HandlerOptions]) -> Callable[[HandlerFunction], HandlerFunction]:
        """Have the decorated async function handle these event types.

        Raises:
            ConfigurationError: the function, its name or an option makes no sense; the message names the function.
        """
        for each in cast("tuple[object, ...]", event_types):  # untyped callers
            if not isinstance(each, str):
                what = name_of(each) if callable(each) else repr(each)
                raise ConfigurationError(
                    f"{what} is no event type; name the types in parentheses: "
                    f"@{self.context}.on('<context>.<noun>.<verb>')"
                )

        def register(function: HandlerFunction) -> HandlerFunction:
            self._add(function, event_types, options)
            return function

        return register

    @property
    def event_types(self) -> tuple[str, ...]:
        """The types there are handlers for."""
        return tuple(self._by_type)

    def handlers_of(self, event_type: str) -> tuple[Handler, ...]:
        """The handlers of a type, in the order in which they were registered."""
        return tuple(self._by_type.get(event_type, ()))

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """All handlers."""
        return tuple(self._by_name.values())

    def handler(self, function: Callable[..., Awaitable[None]], **options: Unpack[HandlerOptions]) -> Handler:
        """The function as a handler of this context, not registered for any type.

        Raises:
            ConfigurationError: see `on`.
        """
        where = name_of(function)
        unknown = sorted(options.keys() - HandlerOptions.__annotations__.keys())
        if unknown:
            raise ConfigurationError(
                f"handler {where}: unknown options {unknown}; known are {sorted(HandlerOptions.__annotations__)}"
            )
        return Handler(
            name=self._name(function, options.get("name"), where),
            function=function,
            signature=read_signature(function),
            retry=_policy(options.get("retry", self._retry), where),
            timeout=_positive(options.get("timeout", self._timeout), where),
            concurrency=_at_least_one(options.get("concurrency"), where),
        )

    def freeze(self) -> Consumer:
        """Take no more handlers: a worker runs with what there is when it starts."""
        self._frozen = True
        return self

    def _add(
        self, function: Callable[..., Awaitable[None]], event_types: tuple[str, ...], options: HandlerOptions
    ) -> None:
        where = name_of(function)
        if self._frozen:
            raise ConfigurationError(f"handler {where} comes too late: a worker runs with this consumer already")
        wrong = [
            each
            for each in event_types
            if re.fullmatch(EVENT_TYPE_PATTERN, each) is None or len(each) > MAX_NAME_LENGTH
        ]
        if wrong or not event_types or len(set(event_types)) < len(event_types):
            raise ConfigurationError(
                f"handler {where}: name the event types it handles, each once, such as 'worlds.scan.completed'"
                + (f", not {[each[:80] for each in wrong]}" if wrong else "")
            )
        handler = self.handler(function, **options)
        self._by_name[handler.name] = handler
        for event_type in event_types:
            self._by_type.setdefault(event_type, []).append(handler)

    def _name(self, function: Callable[..., object], given: str | None, where: str) -> str:
        name = given if given is not None else f"{self.context}.{getattr(function, '__name__', '')}"
        if re.fullmatch(HANDLER_NAME_PATTERN, name) is None or len(name) > MAX_NAME_LENGTH:
            raise ConfigurationError(
                f"handler {where}: its name {name[:80]!r} must be qualified by its scope, lower case, "
                f"such as '{self.context}.project_card'; give it one with name=..."
            )
        if name in self._by_name:
            raise ConfigurationError(
                f"handler {where}: the name {name!r} is taken by {name_of(self._by_name[name].function)}; "
                "give one of them another with name=..."
            )
        return name


def _policy(retry: object, where: str) -> RetryPolicy:
    if not isinstance(retry, RetryPolicy):
        raise ConfigurationError(f"handler {where}: retry must be a RetryPolicy(...), not {retry!r}")
    return retry


def _positive(timeout: object, where: str) -> timedelta:
    if not isinstance(timeout, timedelta) or timeout <= timedelta(0):
        raise ConfigurationError(f"handler {where}: the timeout must be a positive timedelta, not {timeout!r}")
    return timeout


def _at_least_one(concurrency: object, where: str) -> int | None:
    if concurrency is None:
        return None
    if type(concurrency) is not int or concurrency < 1:
        raise ConfigurationError(
            f"handler {where}: concurrency must be a whole number of at least 1, not {concurrency!r}"
        )
    return concurrency
