"""Pages made row by row are byte for byte what prometheus_client makes of the same families."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami.web.card_metrics import Page, snapshot
from hami.web.exposition import Family, Row, as_metric, texts
from tests.placement.fakes import annotated, make_node, make_pod, make_world
from tests.web.pages import plain_page

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


def ours(*families: Family) -> bytes:
    return "".join(text for family in families for text in texts(family, 3)).encode()


@pytest.mark.parametrize("labels", [("zone", "alpha"), ("alpha", "zone")])
def test_two_labels(labels: tuple[str, str]) -> None:
    family = Family("some_gauge", "What it is", labels, lambda: iter(ROWS))
    assert ours(family) == theirs(family)


def test_one_label_no_label_and_no_rows() -> None:
    one = Family("one", "One", ("only",), lambda: iter([(("x",), 1), (("y",), 2)]))
    none = Family("none", "None", (), lambda: iter([((), 7)]))
    empty = Family("empty", "Empty", ("a", "b"), lambda: iter([]))
    assert ours(one, none, empty) == theirs(one, none, empty)


@pytest.mark.parametrize("legacy", [False, True])
async def test_the_scheduler_s_page(legacy: bool) -> None:
    world = make_world()
    for number in range(20):
        world.on_node(make_node(f"n{number}", number % 4))
        world.on_pod(annotated(make_pod(f"p{number}"), f"n{number}", f"GPU-0,NVIDIA,{number},1:;"))
    assert (await plain_page(Page(world, legacy=legacy))).startswith(generate_latest(snapshot(world, legacy=legacy)))
