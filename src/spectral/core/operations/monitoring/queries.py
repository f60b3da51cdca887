"""PromQL in the few forms that rules and panels take. Names come from the catalogue only.

The gauges of the database are exposed by one worker at a time, by two or by none for a while when another one takes
over: `worst` is right in all cases. What workers count themselves is added up: `grown`, `rate` and `quantile`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.events.metrics import BRAKE, EMITTER_UP, prometheus_labels, prometheus_name
from spectral.core.operations.insights_values import EVERY_CONTEXT

if TYPE_CHECKING:
    from datetime import timedelta

    from spectral.core.events.metrics import Metric

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))


@dataclass(frozen=True, slots=True)
class Queries:
    """by: labels that tell databases apart, where one Prometheus watches several; they are kept by every sum.

    filters: regular expressions that the labels of these names have to match, in metrics that have them.
    held: for how long what was measured last goes on while nobody measures; else there is nothing meanwhile.
    """

    by: tuple[str, ...] = ()
    filters: tuple[tuple[str, str], ...] = ()
    held: timedelta | None = None

    def select(self, metric: Metric, suffix: str = "", /, **equal: str) -> str:
        """The series of a metric; of a histogram with the suffix of one of its parts."""
        matchers = [f'{label}="{value}"' for label, value in equal.items()]
        matchers += [f'{label}=~"{value}"' for label, value in self.filters if label in prometheus_labels(metric)]
        return prometheus_name(metric) + suffix + (f"{{{','.join(matchers)}}}" if matchers else "")

    def worst(self, metric: Metric, *labels: str, **equal: str) -> str:
        """The largest of a gauge, over whoever exposes it; where it is held, of the database's."""
        return self.over("max", labels, self._held(self.select(metric, **equal)))

    def total(self, metric: Metric, *labels: str, **equal: str) -> str:
        """The sum of what workers say of themselves."""
        return self.over("sum", labels, self.select(metric, **equal))

    def grown(self, metric: Metric, window: str, *labels: str, **equal: str) -> str:
        """By how much a counter of all workers went up within the window."""
        return self.over("sum", labels, f"increase({self.select(metric, **equal)}[{window}])")

    def counted(self, metric: Metric, window: str, *labels: str, **equal: str) -> str:
        """The same where series appear with what they count: by how much they grew since they were not there yet.

        That they were not is said by the hour before: at a single instant there may have been no scrape.
        """
        series = self.select(metric, **equal)
        new = f"last_over_time({series}[{window}]) unless last_over_time({series}[1h] offset {window})"
        return self.over("sum", labels, f"{new} or increase({series}[{window}])")

    def happened(self, metric: Metric, window: str, *labels: str) -> str:
        """Where a counter went up within the window, or appeared: a series that begins with 1 has no increase."""
        series = self.select(metric)
        new = self.over("sum", labels, f"{series} unless {series} offset {window}")
        return f"{self.grown(metric, window, *labels)} > 0 or {new} > 0"

    def rate(self, metric: Metric, window: str, *labels: str, suffix: str = "", **equal: str) -> str:
        """How much a counter of all workers goes up in a second."""
        return self.over("sum", labels, f"rate({self.select(metric, suffix, **equal)}[{window}])")

    def quantile(self, share: float, metric: Metric, window: str, *labels: str) -> str:
        """What this share of a histogram's values does not exceed."""
        return f"histogram_quantile({share:g}, {self.rate(metric, window, *labels, 'le', suffix='_bucket')})"

    def unless_braked(self, query: str) -> str:
        """The same without contexts whose claiming somebody has stopped on purpose."""
        mine = f"{self._on('context')} {self.worst(BRAKE, 'context')} > 0"
        everybody = f"{self._on()} {self.worst(BRAKE, context=EVERY_CONTEXT)} > 0"
        return f"{query} unless {mine} unless {everybody}"

    def unless_any(self, query: str, metric: Metric, *labels: str) -> str:
        """The same without those of which this gauge counts something."""
        return f"{query} unless {self._on(*labels)} {self.worst(metric, *labels)} > 0"

    def unless_zero(self, query: str, metric: Metric, **equal: str) -> str:
        """The same, but nothing of a database where this gauge is 0."""
        return f"{query} unless {self._on()} {self.worst(metric, **equal)} == 0"

    def while_any(self, query: str, metric: Metric, *labels: str) -> str:
        """Only those of which this gauge counts something."""
        return f"{query} and {self._on(*labels)} {self.worst(metric, *labels)} > 0"

    def over(self, operator: str, labels: tuple[str, ...], query: str) -> str:
        """Aggregate, keeping these labels."""
        kept = ", ".join((*self.by, *labels))
        return f"{operator} by ({kept}) ({query})" if kept else f"{operator}({query})"

    def _held(self, series: str) -> str:
        """With what there was before as long as there is no emitter. One that is there has the last word.

        A mere maximum over time would show what is over to the next emitter too, and keep every alert that long.
        """
        if self.held is None:
            return series
        before = f"last_over_time({series}[{duration(self.held)}])"
        return f"{series} or {before} unless {self._on()} {prometheus_name(EMITTER_UP)}"

    def _on(self, *labels: str) -> str:
        return f"on ({', '.join((*self.by, *labels))})"


def duration(span: timedelta) -> str:
    """A span longer than nothing as Prometheus writes it: whole, in the largest unit that fits."""
    seconds = round(span.total_seconds())
    return next((f"{seconds // size}{unit}" for unit, size in _UNITS if not seconds % size), f"{seconds}s")
