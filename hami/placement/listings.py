"""Complete lists of nodes and pods, taken page by page as they come, so that no list is ever held whole.

What was taken counts at once, as if the watch had brought it; what no page had is gone when the list is complete. A
list that breaks off before that takes nothing away.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from hami.core.objects import Node, Pod
from hami.placement.slicer import Slicer

if TYPE_CHECKING:
    from hami.placement.world import World

_PODS_BETWEEN_LOOKS: Final = 8
_NODES_BETWEEN_LOOKS: Final = 2
"""Objects taken between two looks at the clock: a pod takes 20 µs, a node 100 µs."""


class NodeListing:
    """One list of all nodes."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names: set[str] = set()

    async def take(self, nodes: Sequence[Node]) -> None:
        slicer = Slicer(self._world.clock)
        for number, node in enumerate(nodes):
            self._names.add(node.name)
            self._world.on_node(node, listed=True)
            if not number % _NODES_BETWEEN_LOOKS:
                await slicer.give_way()
        await self._world.settle_if_synced()

    async def complete(self) -> None:
        for name in self._world.inventory.names():
            if name not in self._names:
                self._world.on_node_deleted(name)
        await self._world.nodes_complete()


class PodListing:
    """One list of all pods."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._uids: set[str] = set()

    async def take(self, pods: Sequence[Pod]) -> None:
        slicer = Slicer(self._world.clock)
        for number, pod in enumerate(pods):
            self._uids.add(pod.metadata.uid)
            self._world.on_listed_pod(pod)
            if not number % _PODS_BETWEEN_LOOKS:
                await slicer.give_way()
        await self._world.settle_if_synced()

    async def complete(self) -> None:
        ledger = self._world.ledger
        slicer = Slicer(self._world.clock)
        for number, uid in enumerate(ledger.uids()):
            ledger.not_listed(uid, self._uids)
            if not number % _PODS_BETWEEN_LOOKS:
                await slicer.give_way()
        await self._world.pods_complete()
