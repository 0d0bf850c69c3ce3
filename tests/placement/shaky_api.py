"""An API server that fails at random, answers late and tells its watch later still, and how much there is to place."""

from __future__ import annotations

import asyncio
from random import Random

from hami.core.errors import ApiError, TransportError
from hami.core.objects import Node, Pod
from tests.placement.fake_api import FakeApi

NODES = ("n1", "n2", "n3")
MEMORY = 10000
PODS = 24
FAULTS = (
    lambda: TransportError("reset"),
    lambda: ApiError(504, "Timeout", "slow"),
    lambda: ApiError(429, "TooManyRequests", "later"),
)


class ShakyApi(FakeApi):
    """Answers after a random number of turns of the loop, fails at random, and tells the watch later."""

    def __init__(self, random: Random, fault_rate: float) -> None:
        super().__init__()
        self.random = random
        self.fault_rate = fault_rate
        self.watch: asyncio.Queue[Node | Pod] = asyncio.Queue()

    def put_node(self, node: Node) -> Node:
        node = super().put_node(node)
        self.watch.put_nowait(node)
        return node

    def put_pod(self, pod: Pod) -> Pod:
        pod = super().put_pod(pod)
        self.watch.put_nowait(pod)
        return pod

    async def _enter(self, verb: str, name: str) -> None:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        await super()._enter(verb, name)

    def _trip(self, verb: str, moment: str) -> None:
        super()._trip(verb, moment)
        if self.random.random() < self.fault_rate:
            raise self.random.choice(FAULTS)()

    async def plugins(self) -> None:
        """Device plugins that serve whoever holds a node's token, without end."""
        while True:
            for node in NODES:
                owner = self.lock(node).rpartition(",")[2]
                if owner and self.pod(owner).spec.node_name == node:
                    self.serve("default", owner)
            await asyncio.sleep(0)
