"""Bulk loads give way to others, and memory per pod stays small."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc

from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from tests.placement.complete_lists import nodes_replaced, pods_replaced
from tests.placement.costly_clock import CostlyClock
from tests.placement.fakes import annotated, container, make_node, make_pod, make_world


async def turns_of_others(work: object) -> int:
    """How often another task got the loop while `work` ran."""
    assert asyncio.iscoroutine(work)
    turns = 0
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    task.result()
    return turns


async def test_relists_are_sliced() -> None:
    world = make_world(CostlyClock())
    nodes = [make_node(f"n{number}") for number in range(300)]
    pods = [annotated(make_pod(f"p{number}"), f"n{number}", "GPU-0,NVIDIA,10,1:;") for number in range(300)]
    assert await turns_of_others(nodes_replaced(world, nodes)) > 15
    assert await turns_of_others(pods_replaced(world, pods)) > 30
    assert await turns_of_others(pods_replaced(world, [])) > 15
    assert not any(world.ledger.uses(node.name) for node in nodes)


async def test_collecting_reasons_is_sliced_and_takes_room_that_comes_free() -> None:
    world = make_world(CostlyClock())
    names = [f"n{number:03}" for number in range(100)]
    for number, name in enumerate(names):
        world.on_node(make_node(name, 1))
        world.on_pod(annotated(make_pod(f"p{name}"), name, f"GPU-0,NVIDIA,{16384 - number},1:;"))
    engine = Engine(world)
    asked = make_pod("new", container(memory_mib=2000))
    deciding = asyncio.create_task(engine.filter_sliced(asked, NodeNames.of(names)))
    await asyncio.sleep(0)
    assert not deciding.done()
    world.on_pod_deleted("default", "pn099", "uid-pn099")
    assert (await deciding).node == "n099"


def test_memory_per_pod_is_below_one_kib() -> None:
    """A table of the whole process (interned texts) may double under one of two; what a pod takes counts in both."""
    count = 4000
    assert min(_used_bytes(count) for _ in range(2)) / count < 1024


def _used_bytes(count: int) -> int:
    world = make_world()
    for number in range(40):
        world.on_node(make_node(f"n{number}", 8))
    pods = (
        annotated(make_pod(f"pod-with-a-usual-name-{number}"), f"n{number % 40}", f"GPU-{number % 8},NVIDIA,1000,5:;;")
        for number in range(count)
    )
    gc.collect()
    tracemalloc.start()
    try:
        for pod in pods:
            world.on_pod(pod)
        del pod
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
