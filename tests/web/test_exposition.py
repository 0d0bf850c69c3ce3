"""Pages made row by row are byte for byte what prometheus_client makes of the same families."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami.web.card_metrics import page, snapshot
from hami.web.exposition import Family, Row, as_metric, stream
from tests.placement.fakes import annotated, make_node, make_pod, make_world

ROWS: list[Row] = [
    (("b", "a"), 1),
    (("", ""), 0.5),
    (('say "hi"', "back\\slash"), 85899345920),
    (("two\nlines", "ü 100%s %d"), -3.25),
    (("infinite", "x"), float("inf")),
    (("none", "x"), float("nan")),
    (("large", "x"), 12345678901234567890.0),
]


class Families(Collector):
    def __init__(self, *families: Family) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        return map(as_metric, self.families)


def theirs(*families: Family) -> bytes:
    registry = CollectorRegistry()
    registry.register(Families(*families))
    return generate_latest(registry)


async def ours(*families: Family) -> bytes:
    return b"".join([chunk async for chunk in stream(families)])


@pytest.mark.parametrize("labels", [("zone", "alpha"), ("alpha", "zone")])
async def test_two_labels(labels: tuple[str, str]) -> None:
    family = Family("some_gauge", "What it is", labels, lambda: iter(ROWS))
    assert await ours(family) == theirs(family)


async def test_one_label_no_label_no_rows_and_time_that_passes() -> None:
    one = Family("one", "One", ("only",), lambda: iter([(("x",), 1), None, (("y",), 2)]))
    none = Family("none", "None", (), lambda: iter([((), 7)]))
    empty = Family("empty", "Empty", ("a", "b"), lambda: iter([None, None]))
    assert await ours(one, none, empty) == theirs(one, none, empty)


async def test_large_pages_come_in_chunks() -> None:
    rows: list[Row] = [((f"value {number}",), number) for number in range(10_000)]
    family = Family("many", "Many", ("number",), lambda: iter(rows))
    chunks = [chunk async for chunk in stream([family])]
    assert len(chunks) > 3
    assert b"".join(chunks) == theirs(family)


@pytest.mark.parametrize("legacy", [False, True])
async def test_the_scheduler_s_page(legacy: bool) -> None:
    world = make_world()
    for number in range(20):
        world.on_node(make_node(f"n{number}", number % 4))
        world.on_pod(annotated(make_pod(f"p{number}"), f"n{number}", f"GPU-0,NVIDIA,{number},1:;"))
    text = b"".join([chunk async for chunk in page(world, legacy=legacy)])
    assert text.startswith(generate_latest(snapshot(world, legacy=legacy)))
