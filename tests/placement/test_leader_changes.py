"""Two schedulers on one cluster while leadership swings, writes fail and watches lag: no card holds too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import msgspec
import pytest

from hami.core.objects import Node, Pod
from hami.placement.announce import AnnouncingFilters, Filters
from hami.placement.auditor import Auditor
from hami.placement.bind import Binder, BindSettings
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from tests.placement.fake_api import FakeApi, FakeEvents
from tests.placement.fakes import FakeClock, card, container, make_node, make_pod, make_world, totals_from_text
from tests.placement.shaky_api import MEMORY, NODES, PODS, ShakyApi


class SharedApi(ShakyApi):
    """One API server with a lagging watch for each scheduler."""

    def __init__(self, random: Random, fault_rate: float) -> None:
        super().__init__(random, fault_rate)
        self.watches: list[asyncio.Queue[Node | Pod]] = []

    def put_node(self, node: Node) -> Node:
        node = FakeApi.put_node(self, node)
        self._tell(node)
        return node

    def put_pod(self, pod: Pod) -> Pod:
        pod = FakeApi.put_pod(self, pod)
        self._tell(pod)
        return pod

    def _tell(self, found: Node | Pod) -> None:
        for watch in self.watches:
            watch.put_nowait(found)


class Replica:
    """One scheduler."""

    def __init__(self, name: str, api: SharedApi, clock: FakeClock, *, announce: bool) -> None:
        self.world = make_world(clock)
        self.watch: asyncio.Queue[Node | Pod] = asyncio.Queue()
        api.watches.append(self.watch)
        self.filters: Filters = Engine(self.world)
        if announce:
            self.filters = AnnouncingFilters(self.filters, self.world, api)
        self.binder = Binder(self.world, api, FakeEvents(), clock, BindSettings(name, wait_s=2.0, retry_pause_s=0.0))
        self.auditor = Auditor(self.world, Unlisted(), FakeEvents())

    def take(self, found: Node | Pod) -> None:
        if isinstance(found, Node):
            self.world.on_node(found)
        else:
            self.world.on_pod(found)

    async def follow(self, random: Random) -> None:
        while True:
            found = await self.watch.get()
            for _ in range(random.randrange(3)):
                await asyncio.sleep(0)
            self.take(found)


class Unlisted:
    """The auditor's list is not asked for here."""

    async def pod_pages(self) -> AsyncIterator[list[Pod]]:
        raise AssertionError
        yield []

    async def get_pod(self, namespace: str, name: str) -> Pod:
        raise AssertionError((namespace, name))


class Run:
    """Two schedulers, a plugin per node, a kube-scheduler per pod, and a lease that swings."""

    def __init__(self, seed: int, fault_rate: float, *, announce: bool) -> None:
        self.random = Random(seed)
        clock = FakeClock()
        clock.real = True
        self.api = SharedApi(self.random, fault_rate)
        self.replicas = [Replica(name, self.api, clock, announce=announce) for name in ("s-0", "s-1")]
        self.leader = self.replicas[0]
        self.terms = 1
        for name in NODES:
            self.api.put_node(make_node(name, [card(number, slots=4, memory_mib=MEMORY) for number in range(2)]))

    async def swing(self) -> None:
        while True:
            for _ in range(self.random.randrange(20, 60)):
                await asyncio.sleep(0)
            other = self.replicas[self.leader is self.replicas[0]]
            self.leader.binder.leadership_lost()
            other.binder.new_term()
            self.leader = other
            self.terms += 1

    async def schedule(self, name: str) -> None:
        for _ in range(400):
            pod = self.api.pod(name)
            if pod.spec.node_name:
                return
            # A kube-scheduler that lost its lease may still speak to its own extender for a while.
            replica = self.leader if self.random.random() < 0.8 else self.random.choice(self.replicas)
            answer = await replica.filters.filter_sliced(pod, NodeNames.of(NODES))
            if answer.node is not None:
                await replica.binder.bind("default", name, pod.metadata.uid, answer.node)
            await asyncio.sleep(0)
        raise AssertionError(f"{name} was never bound: {answer}")

    async def play(self) -> None:
        helpers = [asyncio.create_task(self.swing()), asyncio.create_task(self.api.plugins())]
        helpers += [asyncio.create_task(replica.follow(self.random)) for replica in self.replicas]
        names = [f"p{number}" for number in range(PODS)]
        for name in names:
            self.api.put_pod(make_pod(name, container(memory_mib=self.random.choice([1000, 2500]))))
        try:
            async with asyncio.timeout(60):
                await asyncio.gather(*(self.schedule(name) for name in names))
                for replica in self.replicas:
                    await replica.binder.drain()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)


@pytest.mark.parametrize("announce", [False, True], ids=["on the binding", "in filter"])
@pytest.mark.parametrize("fault_rate", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(4))
async def test_leadership_that_swings_gives_no_card_twice(seed: int, fault_rate: float, announce: bool) -> None:
    run = Run(seed, fault_rate, announce=announce)
    await run.play()
    assert run.terms > 2, "leadership never changed"
    pods = list(run.api.pods.values())
    assert all(pod.spec.node_name for pod in pods)
    totals = totals_from_text(pods)
    assert sum(slots for slots, _, _ in totals.values()) == PODS
    assert all(slots <= 4 and memory <= MEMORY for slots, memory, _ in totals.values())
    for replica in run.replicas:
        while not replica.watch.empty():
            replica.take(replica.watch.get_nowait())
        held = {
            (name, device): msgspec.structs.astuple(use)
            for name in NODES
            for device, use in replica.world.ledger.uses(name).items()
        }
        assert held == totals
        assert replica.world.in_flight.tasks == []
        assert await replica.auditor.check_memory() == []
