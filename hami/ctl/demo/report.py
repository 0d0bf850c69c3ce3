"""What the tour's cluster looks like now, read from API objects alone: nodes, cards, shares, pods and their events."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from hami.core import allocation
from hami.core.device_type import Registry
from hami.core.model import Device
from hami.core.objects import Node, Pod


class Share(msgspec.Struct, frozen=True):
    """A pod's part of one card."""

    pod: str
    memory_mib: int
    core_percent: int


class Card(msgspec.Struct, frozen=True):
    """One card and who is on it."""

    index: int
    id: str
    type: str
    slots: int
    memory_mib: int
    core_percent: int
    shares: tuple[Share, ...]


class NodeReport(msgspec.Struct, frozen=True):
    """One node and its cards."""

    name: str
    cards: tuple[Card, ...]


class Event(msgspec.Struct, frozen=True):
    """One event as `kubectl describe` would show it."""

    type: str
    reason: str
    source: str
    message: str
    count: int = 1


class PodReport(msgspec.Struct, frozen=True):
    """One pod: where it is, what it holds, and its story."""

    name: str
    phase: str
    node: str
    cards: tuple[tuple[str, int, int], ...]
    """Card id, MiB, percent of cores, in the order of its containers."""
    message: str
    events: tuple[Event, ...]


def nodes_report(nodes: Iterable[Node], pods: Sequence[Pod], registry: Registry) -> list[NodeReport]:
    """Every node with registered cards, and on each card the live pods. Raises DecodeError."""
    reports = []
    for node in sorted(nodes, key=lambda node: node.name):
        here = [pod for pod in pods if pod.spec.node_name == node.name and not pod.finished]
        cards = tuple(_card(device, here, registry) for device in _devices(node, registry))
        reports.append(NodeReport(node.name, cards))
    return reports


def _devices(node: Node, registry: Registry) -> list[Device]:
    found: list[Device] = []
    for vendor in registry:
        text = node.annotations.get(vendor.register_key, "")
        if text:
            found.extend(vendor.decode_register(text, f"node {node.name}"))
    return sorted(found, key=lambda device: device.index)


def _card(device: Device, pods: Iterable[Pod], registry: Registry) -> Card:
    shares = []
    for pod in sorted(pods, key=lambda pod: pod.key):
        held = allocation.read_allocation(pod.annotations, registry, f"pod {pod.key}")
        charge = allocation.charge(held, allocation.container_kinds(pod), registry)
        if device.id in charge:
            use = charge[device.id]
            shares.append(Share(pod.metadata.name, use.memory_mib, use.core_percent))
    return Card(
        device.index, device.id, device.type, device.slots, device.memory_mib, device.core_percent, tuple(shares)
    )


def pod_report(pod: Pod, events: Iterable[dict[str, Any]], registry: Registry, message: str = "") -> PodReport:
    """One pod with its events, oldest first. Raises DecodeError."""
    held = allocation.read_allocation(pod.annotations, registry, f"pod {pod.key}")
    cards = tuple(
        (share.device_id, share.memory_mib, share.core_percent)
        for containers in held.values()
        for container in containers
        for share in container
    )
    own = [event for event in events if event.get("involvedObject", {}).get("uid") == pod.metadata.uid]
    phase = pod.status.phase or "Pending"
    told = tuple(_event(event) for event in sorted(own, key=_event_time))
    return PodReport(pod.metadata.name, phase, pod.spec.node_name, cards, message, told)


def _event_time(event: dict[str, Any]) -> tuple[str, int]:
    metadata = event.get("metadata", {})
    stamp = event.get("firstTimestamp") or event.get("eventTime") or metadata.get("creationTimestamp") or ""
    return (str(stamp)[:19], int(metadata.get("resourceVersion") or 0))


def _event(event: dict[str, Any]) -> Event:
    source = event.get("source", {}).get("component") or event.get("reportingComponent") or ""
    return Event(
        event.get("type", ""), event.get("reason", ""), source, event.get("message", ""), event.get("count") or 1
    )
