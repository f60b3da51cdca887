"""A small Prometheus for tests: series that are scraped, the part of PromQL that the rules use, and the wait of `for`.

A series is a function of time; none means that it is not exposed at that time, which Prometheus marks as stale at the
next scrape. Whatever is not known here raises: a rule that uses it needs more of it written.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Final, TypeAlias, cast

import promql_parser as promql

Labels: TypeAlias = frozenset[tuple[str, str]]
Vector: TypeAlias = dict[Labels, float]
Value: TypeAlias = Vector | float
Course: TypeAlias = Callable[[float], float | None]

SCRAPE: Final = 15.0

_ARITHMETIC: Final[dict[str, Callable[[float, float], float]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda left, right: left / right if right else math.copysign(math.inf, left) if left else math.nan,
}
_COMPARISON: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_AGGREGATION: Final[dict[str, Callable[[list[float]], float]]] = {"max": max, "min": min, "sum": sum, "count": len}
_OVER_TIME: Final[dict[str, Callable[[list[float]], float]]] = {
    "max_over_time": max,
    "min_over_time": min,
    "last_over_time": lambda values: values[-1],
}


@dataclass(frozen=True)
class Series:
    """One series: its name, its labels and its course."""

    name: str
    labels: Mapping[str, str]
    course: Course

    @property
    def key(self) -> Labels:
        return frozenset({"__name__": self.name, **self.labels}.items())


def steady(name: str, value: float, **labels: str) -> Series:
    """A series that never changes."""
    return Series(name, labels, lambda _: value)


def climbing(name: str, per_second: float, **labels: str) -> Series:
    """A counter that goes up evenly."""
    return Series(name, labels, lambda now: 1_000.0 + per_second * now)


def histogram(name: str, per_second: Mapping[str, float], **labels: str) -> list[Series]:
    """The buckets of a histogram and its count; how many observations a second are at most so large, by bound."""
    buckets = [climbing(f"{name}_bucket", rate, le=bound, **labels) for bound, rate in per_second.items()]
    return [*buckets, climbing(f"{name}_count", max(per_second.values()), **labels)]


class Scraped:
    """What was scraped; `ask` evaluates an expression at an instant."""

    def __init__(self, series: Iterable[Series]) -> None:
        self._series = list(series)

    def ask(self, expression: str | promql.Expr, now: float) -> Value:
        """The value of an expression: a number, or a vector by its labels."""
        tree = promql.parse(expression) if isinstance(expression, str) else expression
        return _Evaluation(self._series, now).value(tree)


def firing(series: Iterable[Series], expression: str, hold: float, until: float, every: float = SCRAPE) -> set[Labels]:
    """Whose alert fires at this time: what was there at every evaluation for as long as `hold`."""
    scraped = Scraped(series)
    tree = promql.parse(expression)
    since: dict[Labels, float] = {}
    now = 0.0
    while now <= until:
        found = scraped.ask(tree, now)
        assert isinstance(found, dict), "an alert needs a vector"
        since = {labels: since.get(labels, now) for labels in map(nameless, found)}
        now += every
    last = now - every
    return {labels for labels, began in since.items() if last - began >= hold}


def nameless(labels: Labels) -> Labels:
    """Without the name of the metric."""
    return frozenset((name, value) for name, value in labels if name != "__name__")


class _Evaluation:
    """Of one expression at one instant."""

    def __init__(self, series: list[Series], now: float) -> None:
        self._series = series
        self._now = now

    def value(self, tree: promql.Expr) -> Value:
        match tree:
            case promql.NumberLiteral():
                return tree.val
            case promql.ParenExpr():
                return self.value(tree.expr)
            case promql.VectorSelector():
                return self._instant(tree)
            case promql.AggregateExpr():
                return self._aggregate(tree)
            case promql.Call():
                return self._call(tree)
            case promql.BinaryExpr():
                return self._binary(tree)
            case _:
                raise NotImplementedError(type(tree).__name__)

    def _vector(self, tree: promql.Expr) -> Vector:
        found = self.value(tree)
        assert isinstance(found, dict), f"{tree.prettify()} is a number"
        return found

    def _selected(self, selector: promql.VectorSelector) -> list[Series]:
        if selector.at is not None:
            raise NotImplementedError("@")
        return [
            each
            for each in self._series
            if each.name == selector.name
            and all(_matches(matcher, each.labels) for matcher in selector.matchers.matchers)
        ]

    def _instant(self, selector: promql.VectorSelector) -> Vector:
        """The last sample, unless it is a mark that there is none."""
        scraped = math.floor((self._now - _offset(selector)) / SCRAPE) * SCRAPE
        found = {each.key: each.course(scraped) for each in self._selected(selector)}
        return {labels: value for labels, value in found.items() if value is not None}

    def _range(self, selector: promql.MatrixSelector) -> dict[Labels, list[tuple[float, float]]]:
        """What was scraped in a span of time, which does not begin with its first instant. Marks are no samples."""
        until = self._now - _offset(selector.vector_selector)
        first = math.floor((until - selector.range.total_seconds()) / SCRAPE) + 1
        times = [step * SCRAPE for step in range(first, math.floor(until / SCRAPE) + 1)]
        samples = {
            each.key: [(time, value) for time in times if (value := each.course(time)) is not None]
            for each in self._selected(selector.vector_selector)
        }
        return {labels: found for labels, found in samples.items() if found}

    def _aggregate(self, tree: promql.AggregateExpr) -> Vector:
        groups: dict[Labels, list[float]] = defaultdict(list)
        by = _labels_of(tree.modifier)
        for labels, value in self._vector(tree.expr).items():
            groups[frozenset(pair for pair in labels if pair[0] in by)].append(value)
        return {labels: _AGGREGATION[str(tree.op)](values) for labels, values in groups.items()}

    def _call(self, tree: promql.Call) -> Value:
        name, arguments = tree.func.name, tree.args
        if name == "time":
            return self._now
        if name == "absent":
            return {} if self._vector(arguments[0]) else {frozenset(): 1.0}
        if name == "absent_over_time":
            return {} if self._range(cast("promql.MatrixSelector", arguments[0])) else {frozenset(): 1.0}
        if name == "histogram_quantile":
            share = self.value(arguments[0])
            assert isinstance(share, float)
            return _quantiles(share, self._vector(arguments[1]))
        if name in _OVER_TIME:
            ranged = self._range(cast("promql.MatrixSelector", arguments[0]))
            # The last value is still the metric's own; the largest or smallest is something else.
            kept = (lambda labels: labels) if name == "last_over_time" else nameless
            return {kept(labels): _OVER_TIME[name]([value for _, value in found]) for labels, found in ranged.items()}
        if name in {"rate", "increase"}:
            selector = cast("promql.MatrixSelector", arguments[0])
            seconds = selector.range.total_seconds()
            grown = {nameless(labels): _increase(found, seconds) for labels, found in self._range(selector).items()}
            divisor = seconds if name == "rate" else 1.0
            return {labels: by / divisor for labels, by in grown.items() if by is not None}
        raise NotImplementedError(name)

    def _binary(self, tree: promql.BinaryExpr) -> Value:
        left, right, name = self.value(tree.lhs), self.value(tree.rhs), str(tree.op)
        key = _key_of(tree.modifier)
        if name in {"and", "or", "unless"}:
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            return _combine(name, left, right, key)
        if isinstance(left, float) and isinstance(right, float):
            return _ARITHMETIC[name](left, right)
        if isinstance(left, dict) and isinstance(right, dict):
            return _pair(name, left, right, key)
        if isinstance(left, dict):
            pairs = {labels: (value, cast("float", right)) for labels, value in left.items()}
            return _apply(name, pairs)
        swapped = {labels: (left, value) for labels, value in cast("Vector", right).items()}
        return _apply(name, swapped, keep=1)


def _offset(selector: promql.VectorSelector) -> float:
    return selector.offset.total_seconds() if selector.offset is not None else 0.0


def _matches(matcher: promql.Matcher, labels: Mapping[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.op:
        case promql.MatchOp.Equal:
            return value == matcher.value
        case promql.MatchOp.NotEqual:
            return value != matcher.value
        case promql.MatchOp.Re:
            return re.fullmatch(matcher.value, value) is not None
        case _:
            return re.fullmatch(matcher.value, value) is None


def _labels_of(modifier: promql.AggModifier | None) -> frozenset[str]:
    if modifier is None:
        return frozenset()
    if modifier.type != promql.AggModifierType.By:
        raise NotImplementedError("without")
    return frozenset(modifier.labels)


def _key_of(modifier: promql.BinModifier | None) -> Callable[[Labels], Labels]:
    """What of the labels has to be equal on both sides: all but the name, unless `on` says otherwise."""
    if modifier is None or modifier.matching is None:
        return nameless
    if modifier.matching.type != promql.LabelModifierType.Include or modifier.group_labels:
        raise NotImplementedError("ignoring and group_left")
    wanted = frozenset(modifier.matching.labels)
    return lambda labels: frozenset(pair for pair in labels if pair[0] in wanted)


def _combine(name: str, left: Vector, right: Vector, key: Callable[[Labels], Labels]) -> Vector:
    there = {key(labels) for labels in right}
    if name == "or":
        mine = {key(labels) for labels in left}
        return left | {labels: value for labels, value in right.items() if key(labels) not in mine}
    return {labels: value for labels, value in left.items() if (key(labels) in there) is (name == "and")}


def _pair(name: str, left: Vector, right: Vector, key: Callable[[Labels], Labels]) -> Vector:
    others = {key(labels): value for labels, value in right.items()}
    assert len(others) == len(right), "many-to-many"
    return _apply(
        name, {labels: (value, others[key(labels)]) for labels, value in left.items() if key(labels) in others}
    )


def _apply(name: str, pairs: Mapping[Labels, tuple[float, float]], keep: int = 0) -> Vector:
    """Arithmetic drops the name; a comparison keeps the whole series where it is true."""
    if name in _COMPARISON:
        return {labels: pair[keep] for labels, pair in pairs.items() if _COMPARISON[name](*pair)}
    return {nameless(labels): _ARITHMETIC[name](*pair) for labels, pair in pairs.items()}


def _increase(samples: list[tuple[float, float]], seconds: float) -> float | None:
    """How much a counter went up, extended to the whole range; a fall is a restart from nothing."""
    if len(samples) < 2:
        return None
    grown = sum(after - before if after >= before else after for (_, before), (_, after) in pairwise(samples))
    return grown * seconds / (samples[-1][0] - samples[0][0])


def _quantiles(share: float, buckets: Vector) -> Vector:
    grouped: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = dict(labels)["le"]
        grouped[frozenset(pair for pair in nameless(labels) if pair[0] != "le")].append((float(bound), count))
    return {labels: _quantile(share, sorted(found)) for labels, found in grouped.items()}


def _quantile(share: float, buckets: list[tuple[float, float]]) -> float:
    assert math.isinf(buckets[-1][0]), "a histogram needs the bucket +Inf"
    total = buckets[-1][1]
    if total == 0:
        return math.nan
    below, counted = 0.0, 0.0
    for bound, count in buckets:
        if count >= share * total:
            if math.isinf(bound):
                return below
            return below + (bound - below) * (share * total - counted) / (count - counted)
        below, counted = bound, count
    raise AssertionError("the last bucket holds everything")


def seconds_of(duration: str) -> float:
    """A duration as Prometheus writes it."""
    parsed: timedelta = promql.parse_duration(duration)
    return parsed.total_seconds()
