"""`/filter` says why: reasons of each node, told when they are news, kept within bounds of memory."""

from __future__ import annotations

import functools
import gc
import tracemalloc
from collections.abc import Callable

import pytest

from hami.placement.engine import Engine
from hami.placement.world import World
from tests.placement.fakes import (
    FakeClock,
    annotated,
    card,
    container,
    make_node,
    make_pod,
    make_world,
)
from tests.placement.filtering import add, names


@pytest.fixture
def world(clock: FakeClock) -> World:
    return make_world(clock)


def test_refusal_is_told_again_only_when_it_is_news(engine: Engine, world: World, clock: FakeClock) -> None:
    offered = add(world, "n1", "n2", cards=1)
    pod = make_pod("p", container(memory_mib=20000))
    first = engine.filter(pod, offered).events
    assert [message for _, _, message in first] == [
        "2 nodes CardInsufficientMemory(n1,n2)",
        "no available node, 2 nodes do not meet",
    ]
    assert all((warning, reason) == (True, "FilteringFailed") for warning, reason, _ in first)
    clock.advance(299)
    assert engine.filter(pod, offered).events == ()
    clock.advance(2)
    assert engine.filter(pod, offered).events == first
    world.on_node(make_node("n2", [card(0, healthy=False)], version=2))
    assert len(engine.filter(pod, offered).events) == 3


def test_success_event_lists_scores_and_stays_short(engine: Engine, world: World) -> None:
    offered = add(world, *[f"n{number:02}" for number in range(30)])
    world.on_node(make_node("n00", 2, version=2, cordon="GPU-0,GPU-1"))
    world.on_pod(annotated(make_pod("old"), "n07", "GPU-0,NVIDIA,4096,30:;"))
    ((warning, reason, message),) = engine.filter(make_pod("p"), offered).events
    assert (warning, reason) == (False, "FilteringSucceed")
    assert message.startswith("find fit node(n07), 1 nodes not fit, 29 nodes fit(n07:3.25,n01:0.00,n02:0.00,")
    assert message.endswith(",... 19 more)")


def test_reasons_follow_the_node(engine: Engine, world: World) -> None:
    offered = add(world, "n1", cards=1)
    pod = make_pod("p", container(memory_mib=16000))
    world.on_pod(annotated(make_pod("other"), "n1", "GPU-0,NVIDIA,1000,0:;"))
    assert engine.filter(pod, offered).failed == {"n1": "1/1 CardInsufficientMemory"}
    world.on_node(make_node("n1", 1, version=2, cordon="GPU-0"))
    assert engine.filter(pod, offered).failed == {"n1": "1/1 CardCordoned"}
    world.on_node(make_node("n1", 1, version=3))
    world.on_pod_deleted("default", "other", "uid-other")
    assert engine.filter(pod, offered).node == "n1"


def test_alike_nodes_share_reasons_but_not_card_ids(engine: Engine, world: World) -> None:
    for name in ("n1", "n2"):
        world.on_node(make_node(name, [card(0, node=name), card(1, node=name)]))
    offered = names("n1", "n2")
    plain = engine.filter(make_pod("p", container(memory_mib=99999)), offered)
    assert set(plain.failed.values()) == {"2/2 CardInsufficientMemory"}
    wanted = {"nvidia.com/use-gpuuuid": "GPU-n11", "hami.io/device-cordon": ""}
    chosen = engine.filter(make_pod("q", container(memory_mib=100), annotations=wanted), offered)
    assert chosen.node == "n1"
    world.on_node(make_node("n1", [card(0, node="n1"), card(1, node="n1", healthy=False)], version=2))
    refused = engine.filter(make_pod("r", container(memory_mib=100), annotations=wanted), offered)
    assert refused.failed == {"n1": "1/2 CardNotHealth, 1/2 CardUuidMismatch", "n2": "2/2 CardUuidMismatch"}


def test_cached_reasons_equal_fresh_ones(engine: Engine, world: World) -> None:
    offered = add(world, *[f"n{number}" for number in range(20)])
    for number in range(20):
        world.on_pod(annotated(make_pod(f"old{number}"), f"n{number}", f"GPU-{number % 2},NVIDIA,{number % 3},0:;"))
    for round_ in range(3):
        for count in (1, 2, 3):
            pod = make_pod(f"p{round_}{count}", container(count=count, cores=100, memory_mib=16384))
            answer = engine.filter(pod, offered)
            if answer.node is None:
                assert answer.failed == Engine(world).filter(pod, offered).failed
            world.on_pod_deleted("default", f"old{round_}", f"uid-old{round_}")


def test_memory_stays_bounded_while_nodes_come_and_go(engine: Engine, world: World, clock: FakeClock) -> None:
    pod = make_pod("p", container(memory_mib=99999))

    def pass_through(first: int, last: int) -> None:
        for number in range(first, last):
            offered = add(world, f"n{number}")
            assert engine.filter(pod, offered).failed
            world.on_node_deleted(f"n{number}")
            clock.advance(10)
            world.waking.overtaken(world.is_gone)
            world.settle_now()

    pass_through(0, 200)
    # A table of the whole process (interned texts) may double under one of them; what leaks grows under both.
    grown_bytes = [_grown_bytes(functools.partial(pass_through, at, at + 1000)) for at in (200, 1200)]
    assert min(grown_bytes) < 220_000, (
        "1000 nodes that are gone left their names and uids (bounded, too), less than 220 bytes each"
    )


def test_memory_stays_bounded_with_large_annotations(engine: Engine, world: World) -> None:
    offered = add(world, "n1")

    def pass_through() -> None:
        for number in range(100):
            pod = make_pod("p", container(memory_mib=99999), annotations={"note": f"{number:0100000}"})
            assert engine.filter(pod, offered).failed

    assert min(_grown_bytes(pass_through) for _ in range(2)) < 1_000_000, (
        "of 10 MB of annotations nearly nothing is kept"
    )


def _grown_bytes(work: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
