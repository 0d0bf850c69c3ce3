"""What pods hold together, against what cards have."""

from __future__ import annotations

from tests.reference.allocations import apply_pods
from tests.reference.inventory import read_node
from tests.reference.worlds import World


def over_allocated(world: World) -> list[str]:
    """Ids of cards of which pods hold more than is registered, by the annotations alone."""
    nodes = {node.name: node for node in (read_node(item) for item in world.nodes) if node is not None}
    apply_pods(nodes, world.pods)
    return [
        card.uuid
        for node in nodes.values()
        for card in node.cards
        if card.used > card.count or card.used_mem > card.total_mem or card.used_cores > card.total_cores
    ]
