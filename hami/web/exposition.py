"""Gauge families in the Prometheus text format, rendered row by row.

The text is what `prometheus_client` makes of the same families (a test compares), at a tenth of its cost: at 5,000
nodes of 8 cards a page has 380,000 lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from operator import itemgetter

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.utils import floatToGoString

Row = tuple[tuple[str, ...], float]
"""Label values in the order of the family's labels, and the sample."""


class Family(msgspec.Struct, frozen=True):
    """A gauge: `rows` makes its samples anew at each call."""

    name: str
    text: str
    labels: tuple[str, ...]
    rows: Callable[[], Iterable[Row]]


def as_metric(family: Family) -> Metric:
    """The family with all its samples, for `prometheus_client`."""
    metric = GaugeMetricFamily(family.name, family.text, labels=family.labels)
    for values, sample in family.rows():
        metric.add_metric(values, sample)
    return metric


def head(name: str, text: str) -> str:
    """The lines before a family's samples."""
    return f"# HELP {name} {text}\n# TYPE {name} gauge\n"


class Lines:
    """Makes the lines of one family."""

    def __init__(self, name: str, labels: tuple[str, ...]) -> None:
        order = sorted(range(len(labels)), key=labels.__getitem__)
        labelled = ",".join([labels[at] + '="%s"' for at in order])
        self._template = name + ("{" + labelled + "}" if order else "") + " %s\n"
        self._in_order: Callable[[tuple[str, ...]], tuple[str, ...]]
        self._in_order = itemgetter(*order) if len(order) > 1 else tuple
        self._quotes = 2 * len(order)

    def of(self, rows: Iterable[Row]) -> str:
        """The lines of some samples."""
        template, in_order = self._template, self._in_order
        found = list(rows)
        text = "".join([template % (*in_order(values), _number(sample)) for values, sample in found])
        if "\\" in text or text.count('"') != self._quotes * len(found) or text.count("\n") != len(found):
            return "".join([template % (*map(_escaped, in_order(values)), _number(sample)) for values, sample in found])
        return text


def texts(family: Family, rows_in_one: int = 100) -> Iterator[str]:
    """Head and samples of one family in pieces."""
    yield head(family.name, family.text)
    lines, rows = Lines(family.name, family.labels), list(family.rows())
    for at in range(0, len(rows), rows_in_one):
        yield lines.of(rows[at : at + rows_in_one])


@lru_cache(maxsize=4096)
def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
