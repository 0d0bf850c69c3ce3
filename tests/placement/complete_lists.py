"""Complete lists of objects in one page, as the reflectors give them to the world page by page."""

from __future__ import annotations

from collections.abc import Sequence

from hami.core.objects import Node, Pod
from hami.placement.world import World


async def nodes_replaced(world: World, nodes: Sequence[Node]) -> None:
    """These are all nodes."""
    listing = world.node_listing()
    await listing.take(nodes)
    await listing.complete()


async def pods_replaced(world: World, pods: Sequence[Pod]) -> None:
    """These are all pods; what the list does not have is gone."""
    listing = world.pod_listing()
    await listing.take(pods)
    await listing.complete()
