"""Filter over full Node objects, for autoscalers: empty nodes, no memory, no writes (spec/scheduler 4.9)."""

from __future__ import annotations

from collections.abc import Iterable

from hami.core.device_type import Refusal, Registry
from hami.core.fit import Fit, evaluate
from hami.core.model import NO_USE, NodeState, PodRequest
from hami.core.objects import Node
from hami.core.quota import Room
from hami.core.reasons import NODE_UNREGISTERED
from hami.core.score import node_score
from hami.placement.answers import FilterAnswer
from hami.placement.inventory import Inventory, InventorySettings
from hami.placement.slicer import Slicer

_SETTINGS = InventorySettings(reported_limit_s=0.0)
"""Templates of nodes that do not exist yet carry old stamps: signs of life are not looked at."""


async def simulate(
    registry: Registry,
    shape: PodRequest | Refusal,
    nodes: Iterable[Node],
    slicer: Slicer,
    *,
    all_feasible: bool,
    room: Room | None = None,
) -> FilterAnswer:
    """The best node (every fitting one with `all_feasible`, best first) and a reason for each node that fails.

    `room` is what the namespace's quota has left: a node that is added does not widen it. Other tasks have their turn
    between two of `nodes`.
    """
    if isinstance(shape, PodRequest) and not shape.asks_for_devices:
        return FilterAnswer(passthrough=True)
    failed: dict[str, str] = {}
    fitting: list[tuple[float, str]] = []
    for node in nodes:
        await slicer.give_way()
        if isinstance(shape, Refusal):
            failed[node.name] = shape.message
            continue
        sign = 1.0 if shape.policies.node == "spread" else -1.0
        state, problem = _empty(registry, node)
        found = evaluate(state, shape, registry, room) if not problem else None
        if isinstance(found, Fit):
            fitting.append((sign * node_score(state.devices, state.uses), node.name))
        else:
            failed[node.name] = problem if found is None else found.text
    if not fitting:
        return FilterAnswer(failed=failed, unresolvable=failed)
    ranked = tuple(name for _, name in sorted(fitting))
    return FilterAnswer(node=ranked[0], failed=failed, feasible=ranked if all_feasible else ranked[:1])


def _empty(registry: Registry, node: Node) -> tuple[NodeState, str]:
    inventory = Inventory(registry, _SETTINGS)
    inventory.apply(node, 0.0, 0.0)
    record = inventory.get(node.name)
    if record is None:
        return NodeState(node.name, (), ()), NODE_UNREGISTERED
    cards = record.view
    uses = (NO_USE,) * len(cards.devices)
    return NodeState(node.name, cards.devices, uses, cards.cordoned, cards.pair_scores), cards.problem
