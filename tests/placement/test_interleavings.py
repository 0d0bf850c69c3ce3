"""Many pods at once, with faults at every write and a watch that lags: all are bound, no card holds too much."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from hami.core.objects import Node, Pod
from hami.placement.bind import Binder, BindSettings
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from tests.placement.fake_api import FakeEvents
from tests.placement.fakes import FakeClock, card, container, make_node, make_pod, make_world, totals_from_text
from tests.placement.shaky_api import MEMORY, NODES, PODS, ShakyApi


class Run:
    """One cluster with one scheduler, a plugin per node and a kube-scheduler per pod."""

    def __init__(self, seed: int, fault_rate: float) -> None:
        self.random = Random(seed)
        clock = FakeClock()
        clock.real = True
        self.api = ShakyApi(self.random, fault_rate)
        self.world = make_world(clock)
        self.engine = Engine(self.world)
        settings = BindSettings("me", wait_s=2.0, retry_pause_s=0.0)
        self.binder = Binder(self.world, self.api, FakeEvents(), clock, settings)
        for name in NODES:
            self.api.put_node(make_node(name, [card(number, slots=4, memory_mib=MEMORY) for number in range(2)]))

    async def follow(self) -> None:
        while True:
            found = await self.api.watch.get()
            if self.random.random() < 0.3:
                await asyncio.sleep(0)
            if isinstance(found, Node):
                self.world.on_node(found)
            else:
                self.world.on_pod(found)

    async def schedule(self, name: str) -> int:
        """Filter and bind, again after each failure, as kube-scheduler does; how many tries it took."""
        for number in range(1, 200):
            pod = self.api.pod(name)
            answer = await self.engine.filter_sliced(pod, NodeNames.of(NODES))
            if answer.node is not None and not await self.bind(pod, answer.node):
                return number
            await asyncio.sleep(0)
        raise AssertionError(f"{name} was never bound: {answer}")

    async def bind(self, pod: Pod, node: str) -> str:
        """One bind; now and then the client leaves early."""
        call = asyncio.ensure_future(self.binder.bind("default", pod.metadata.name, pod.metadata.uid, node))
        if self.random.random() < 0.2:
            for _ in range(self.random.randrange(12)):
                await asyncio.sleep(0)
            call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            return "left"

    async def play(self) -> None:
        helpers = [asyncio.create_task(self.follow()), asyncio.create_task(self.api.plugins())]
        names = [f"p{number}" for number in range(PODS)]
        for name in names:
            self.api.put_pod(make_pod(name, container(memory_mib=self.random.choice([1000, 2500]))))
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(self.schedule(name) for name in names))
                await self.binder.drain()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)


@pytest.mark.parametrize("fault_rate", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(8))
async def test_all_pods_are_bound_and_no_card_holds_too_much(seed: int, fault_rate: float) -> None:
    run = Run(seed, fault_rate)
    await run.play()
    pods = list(run.api.pods.values())
    assert all(pod.spec.node_name for pod in pods)
    totals = totals_from_text(pods)
    assert sum(slots for slots, _, _ in totals.values()) == PODS
    assert all(slots <= 4 and memory <= MEMORY for slots, memory, _ in totals.values())
    while not run.api.watch.empty():
        found = run.api.watch.get_nowait()
        if isinstance(found, Pod):
            run.world.on_pod(found)
    held = {
        (name, device): msgspec.structs.astuple(use)
        for name in NODES
        for device, use in run.world.ledger.uses(name).items()
    }
    assert held == totals
    assert run.world.in_flight.tasks == []
