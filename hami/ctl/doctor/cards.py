"""Cards: registered and offered, readable, and given to no more pods than they have room for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hami.core.device_type import Registry
from hami.core.model import Device, Policies, Use
from hami.core.objects import Node
from hami.ctl.doctor.findings import Finding, Severity
from hami.ctl.doctor.snapshot import Snapshot
from hami.placement.handshake import HandshakeKind, read_handshake
from hami.placement.node_view import NodeView
from hami.placement.world import World

_OLD_STAMP_S: Final = 90.0

OVER_ALLOCATED: Final = "over-allocated"
UNDECODABLE: Final = "undecodable"
UNKNOWN_CARD: Final = "unknown-card"
STALE_REGISTRATION: Final = "stale-registration"


class _Moment:
    """The clock of a snapshot."""

    def __init__(self, unix_s: float) -> None:
        self._unix_s = unix_s

    def monotonic_s(self) -> float:
        return self._unix_s

    def unix_s(self) -> float:
        return self._unix_s


def world_of(snapshot: Snapshot, registry: Registry) -> World:
    """What a scheduler would make of these objects."""
    world = World(registry, Policies(), _Moment(snapshot.unix_s))
    for node in snapshot.nodes:
        world.on_node(node, listed=True)
    for pod in snapshot.pods:
        world.on_pod(pod)
    world.settle_now()
    return world


def check_cards(snapshot: Snapshot, world: World) -> Iterator[Finding]:
    """Every check that is about cards."""
    unreadable = world.inventory.undecodable
    for node in snapshot.nodes:
        view = world.view(node.name)
        if view is None:
            continue
        yield from _over_allocated(world, view)
        yield from _unknown_cards(world, view)
        if node.name not in unreadable:
            yield from _registration(node, world.registry, view, snapshot.unix_s)
    yield from _undecodable(world)


def card_count(world: World) -> int:
    """Registered cards that decisions see."""
    views = (world.view(name) for name in world.inventory.names())
    return sum(len(view.state.devices) for view in views if view is not None)


def _over_allocated(world: World, view: NodeView) -> Iterator[Finding]:
    for device, use in zip(view.state.devices, view.state.uses, strict=True):
        excess = _excess(device, use)
        if excess:
            node = view.state.name
            yield Finding(
                Severity.ERROR,
                OVER_ALLOCATED,
                f"node {node} card {device.id}",
                f"{excess}, held by {_holders(world, node, device.id)}",
                "delete pods until the rest fits; look for a second scheduler, for pods with nodeName set, and for a"
                " device split count, memory or core scaling that was lowered",
            )


def _excess(device: Device, use: Use) -> str:
    rows = (
        ("slots", use.slots, device.slots),
        ("memory MiB", use.memory_mib, device.memory_mib),
        ("core percent", use.core_percent, device.core_percent),
    )
    return ", ".join(f"{what} {taken} of {room}" for what, taken, room in rows if taken > room)


def _holders(world: World, node: str, card: str) -> str:
    claims = (world.ledger.get(uid) for uid in world.ledger.uids_on(node))
    return ", ".join(sorted(claim.key for claim in claims if claim and any(id_ == card for id_, _ in claim.charges)))


def _unknown_cards(world: World, view: NodeView) -> Iterator[Finding]:
    for card in view.unknown_ids:
        node = view.state.name
        yield Finding(
            Severity.WARNING,
            UNKNOWN_CARD,
            f"node {node} card {card}",
            f"held by {_holders(world, node, card)} and not registered by the node",
            "the card was removed, hidden in config.json, or failed: delete these pods so that they are placed anew",
        )


def _registration(node: Node, registry: Registry, view: NodeView, unix_s: float) -> Iterator[Finding]:
    for vendor in registry:
        if not node.annotations.get(vendor.register_key):
            continue
        offered = (node.status.allocatable or {}).get(vendor.count_resource)
        problem, first = ("" if view.state.devices else view.problem), ""
        if str(offered or "0") == "0":
            problem = f"registers cards, and kubelet offers no {vendor.count_resource}"
            # Of a resource that was renamed the doctor knows nothing unless it is told.
            first = "" if offered is not None else "is the resource renamed? Then give --device-config-file. "
        if problem:
            yield Finding(
                Severity.ERROR,
                STALE_REGISTRATION,
                f"node {node.name}",
                problem,
                f"{first}is the device plugin running on the node, and registered with kubelet? Look at its log; where"
                f" the node has no plugin any more: kubectl annotate node {node.name} {vendor.register_key}-"
                f" {vendor.handshake_key}-",
            )
            continue
        stamp = read_handshake(node.annotations.get(vendor.handshake_key, ""), unix_s)
        if stamp.kind is HandshakeKind.REPORTED and stamp.age_s > _OLD_STAMP_S:
            yield Finding(
                Severity.NOTE,
                STALE_REGISTRATION,
                f"node {node.name}",
                f"the plugin's stamp is {stamp.age_s:.0f} s old, though kubelet offers the cards",
                "nothing to do where the plugin writes only changes; else look at its log and at the node's clock",
            )


def _undecodable(world: World) -> Iterator[Finding]:
    for node, problem in sorted(world.inventory.undecodable.items()):
        advice = (
            "the node takes no shares: do scheduler and plugin speak the same form (--register-format), and did"
            " somebody edit the annotation?"
        )
        yield Finding(Severity.ERROR, UNDECODABLE, f"node {node}", problem, advice)
    for uid, problem in sorted(world.ledger.undecodable.items()):
        claim = world.ledger.get(uid)
        if claim is not None:
            yield Finding(
                Severity.ERROR,
                UNDECODABLE,
                f"pod {claim.key}",
                problem,
                f"node {claim.node} takes no new shares while the pod lives: delete it so that it is placed anew",
            )
