"""Upstream's card and pod metrics of the scheduler (spec/contract 3.6), node by node: what one node's series are.

Core "ratios" are 0..100 and the memory ratio of a node's card is 0..1, as upstream has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import msgspec

from hami.core.codec import decode_mig_allocations
from hami.core.errors import DecodeError
from hami.core.model import Device, Use
from hami.obs.shared_series import ZONE
from hami.placement.claims import Claim
from hami.placement.node_view import NodeView
from hami.placement.world import World
from hami.web import metric_names
from hami.web.exposition import Family, Row

MIB: Final = 1024 * 1024
CARD_LABELS: Final = ("zone", "node", "device_uuid", "device_index", "device_type")
POD_LABELS: Final = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")
MIG_LABELS: Final = (
    *CARD_LABELS[:4],
    "mig_uuid",
    "profile",
    "gpu_instance_id",
    "compute_instance_id",
    "placement_start",
    "placement_size",
)
MIG_TEXT_AT: Final = 2
"""Where `Claim.source` has the MIG reservations."""


class NodeFacts(msgspec.Struct, frozen=True):
    """One node at one moment. `view`: None for a node that is not known though pods are bound to it."""

    name: str
    view: NodeView | None
    claims: tuple[Claim, ...]

    def cards(self) -> Iterator[tuple[Device, Use]]:
        return zip(self.view.state.devices, self.view.state.uses, strict=True) if self.view else iter(())


def facts_of(world: World, name: str) -> NodeFacts:
    """The node as it is now; call `World.settle` before."""
    found = map(world.ledger.get, world.ledger.uids_on(name))
    claims = sorted((claim for claim in found if claim), key=lambda claim: (claim.namespace, claim.name))
    return NodeFacts(name, world.view(name), tuple(claims))


def known_names(world: World) -> list[str]:
    """Nodes that have series, in their order on the page."""
    return sorted({*world.inventory.names(), *world.ledger.nodes()})


class NodeFamily(msgspec.Struct, frozen=True):
    """A gauge whose samples belong to nodes."""

    name: str
    text: str
    labels: tuple[str, ...]
    rows: Callable[[NodeFacts], Iterable[Row]]

    def over(self, nodes: list[NodeFacts]) -> Family:
        """The family of these nodes together."""
        return Family(self.name, self.text, self.labels, lambda: (row for node in nodes for row in self.rows(node)))


def _card_family(
    name: str, text: str, value: Callable[[Device, Use], float], *sizes: tuple[str, Callable[[Device], int]]
) -> NodeFamily:
    """`sizes`: more labels, with what a card says of them."""

    def rows(node: NodeFacts) -> Iterator[Row]:
        for card, use in node.cards():
            more = [str(size(card)) for _, size in sizes]
            yield (ZONE, node.name, card.id, str(card.index), *more, card.type), value(card, use)

    return NodeFamily(name, text, (*CARD_LABELS[:4], *(label for label, _ in sizes), CARD_LABELS[4]), rows)


_CORES: Final = ("device_cores", lambda card: card.core_percent)
_MEMORY: Final = ("device_memory_limit", lambda card: card.memory_mib)


def _memory_share(node: NodeFacts) -> Iterator[Row]:
    for card, use in node.cards():
        if card.memory_mib:
            yield (ZONE, node.name, card.id, str(card.index), card.type), use.memory_mib / card.memory_mib


def _pod_rows(value: Callable[[Use], float], node: NodeFacts) -> Iterator[Row]:
    for claim in node.claims:
        for card, use in claim.charges:
            yield (ZONE, claim.namespace, claim.node, claim.name, "0", card), value(use)


def _mig_instances(node: NodeFacts) -> Iterator[Row]:
    """Instances that a device plugin made for pods, as their reservations say."""
    index_of: dict[str, int] = {}
    for claim in node.claims:
        if not (claim.slices and claim.source):
            continue
        index_of = index_of or {card.id: card.index for card, _ in node.cards()}
        text = claim.source[MIG_TEXT_AT]
        try:
            made = decode_mig_allocations(text, claim.key) if text else ()
        except DecodeError:
            # Told by the ledger already: the node is out.
            continue
        for each in made:
            if each.mig_uuid is not None:
                ids = (str(each.gpu_instance_id), str(each.compute_instance_id))
                place = (str(each.placement.start), str(each.placement.size))
                card = (ZONE, claim.node, each.gpu_uuid, str(index_of.get(each.gpu_uuid, "")))
                yield (*card, each.mig_uuid, each.profile, *ids, *place), 1


NODE_FAMILIES: Final = (
    _card_family(metric_names.GPU_MEMORY_LIMIT, "Registered memory of a card", lambda card, _: card.memory_mib * MIB),
    _card_family(
        metric_names.GPU_CORE_LIMIT, "Registered cores of a card in percent", lambda card, _: card.core_percent
    ),
    _card_family(metric_names.GPU_SHARED_COUNT, "Shares on a card", lambda _, use: use.slots),
    _card_family(metric_names.GPU_CORE_ALLOCATED, "Cores promised to pods in percent", lambda _, use: use.core_percent),
    _card_family(
        metric_names.GPU_MEMORY_ALLOCATED, "Memory promised to pods", lambda _, use: use.memory_mib * MIB, _CORES
    ),
    _card_family(
        metric_names.NODE_GPU_OVERVIEW,
        "Memory promised to pods, with the card's size",
        lambda _, use: use.memory_mib * MIB,
        _CORES,
        _MEMORY,
    ),
    NodeFamily(
        metric_names.NODE_GPU_MEMORY_SHARE,
        "Share of a card's memory that is promised, 0 to 1",
        CARD_LABELS,
        _memory_share,
    ),
    NodeFamily(
        metric_names.VGPU_MEMORY_ALLOCATED,
        "Memory promised to a pod",
        POD_LABELS,
        functools.partial(_pod_rows, lambda use: use.memory_mib * MIB),
    ),
    NodeFamily(
        metric_names.VGPU_CORE_ALLOCATED,
        "Cores promised to a pod in percent",
        POD_LABELS,
        functools.partial(_pod_rows, lambda use: use.core_percent),
    ),
    NodeFamily(metric_names.NODE_GPU_MIG_INSTANCE, "MIG instance that a pod holds, 1", MIG_LABELS, _mig_instances),
)
