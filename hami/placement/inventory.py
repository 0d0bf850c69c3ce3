"""Which cards each node offers, as a function of Node objects and time (spec/scheduler 2.5, 2.6, 6.2).

A register annotation is decoded only when its text changed. A node whose annotation cannot be read, whose plugin
stopped or whose kubelet offers nothing is out, with a reason, and comes back by itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

import msgspec

from hami.core import keys
from hami.core.device_type import DeviceType, Registry
from hami.core.model import Device
from hami.core.objects import Node
from hami.core.reasons import NODE_UNREGISTERED
from hami.core.versions import is_older
from hami.placement.handshake import HandshakeKind
from hami.placement.vendor_cards import VendorCards, allocatable
from hami.placement.vendor_locks import texts_on

REQUESTING_LIMIT_S: Final = 60.0
"""A `Requesting_` stamp older than this, with nothing allocatable, means that the plugin is gone."""
_MOST_REMOVED: Final = 20_000


class InventorySettings(msgspec.Struct, frozen=True):
    """`reported_limit_s`: a plugin that renewed its `Reported` stamp before is out after this silence; 0 never ages it
    out. `node_selector`: labels that a node must carry."""

    reported_limit_s: float = 90.0
    node_selector: tuple[tuple[str, str], ...] = ()


class CardsView(msgspec.Struct, frozen=True, gc=False):
    """What placement may use of one node now. `problem` says why there is nothing; then `devices` is empty."""

    devices: tuple[Device, ...] = ()
    pair_scores: dict[str, dict[str, int]] = {}
    cordoned: frozenset[str] = frozenset()
    problem: str = ""


class NodeRecord:
    """One node: what binding needs (resource version, token, epoch) and its cards per vendor."""

    __slots__ = (
        "anew",
        "cards",
        "epoch",
        "labels_match",
        "lease_expired",
        "lock",
        "name",
        "other_allocatable",
        "queued",
        "resource_version",
        "uid",
        "vendor_locks",
        "view",
    )

    def __init__(self, name: str, uid: str) -> None:
        self.name = name
        self.uid = uid
        self.resource_version = ""
        self.lock = ""
        self.epoch = ""
        self.vendor_locks: tuple[tuple[str, str], ...] = ()
        self.anew = False
        """Another node had this name before: what was written on that one is lost, pods may still be bound to it."""
        self.labels_match = True
        self.lease_expired = False
        self.cards: dict[str, VendorCards] = {}
        self.other_allocatable: tuple[tuple[str, int | None], ...] = ()
        """Extended resources that no vendor counts by now; one may when resources are renamed."""
        self.view = CardsView(problem=NODE_UNREGISTERED)
        self.queued = False
        """An entry in the heap of deadlines exists."""


class Inventory:
    """Every node known to the watch. Methods that may change what a node offers return whether they did."""

    def __init__(self, registry: Registry, settings: InventorySettings) -> None:
        self._registry = registry
        self._settings = settings
        self._nodes: dict[str, NodeRecord] = {}
        self._deadlines: list[tuple[float, str]] = []
        self._removed: dict[str, str] = {}
        """Name -> uid of the last node that had it."""

    def __len__(self) -> int:
        return len(self._nodes)

    def names(self) -> list[str]:
        return list(self._nodes)

    def get(self, name: str) -> NodeRecord | None:
        return self._nodes.get(name)

    @property
    def undecodable(self) -> dict[str, str]:
        """Node -> problem, for nodes with a register annotation that cannot be read."""
        problems: dict[str, str] = {}
        for name, record in self._nodes.items():
            for cards in record.cards.values():
                if cards.problem:
                    problems.setdefault(name, cards.problem)
        return problems

    def apply(self, node: Node, now_s: float, now_unix_s: float, *, listed: bool = False) -> bool:
        """Takes a node as the API server has it.

        A watch event with an older version than the known one is ignored, as is what was read before the node was
        removed; a list (`listed`) is always believed, so that a restored etcd does no harm.
        """
        record = self._nodes.get(node.name)
        if not listed and self._is_past(node, record):
            return False
        if record is not None and record.uid != node.metadata.uid:
            self._removed[node.name] = record.uid
            record = None
        fresh = record is None
        if record is None:
            anew = node.name in self._nodes or node.name in self._removed
            record = self._nodes[node.name] = NodeRecord(node.name, node.metadata.uid)
            record.anew = anew
        record.resource_version = node.metadata.resource_version
        record.lock = node.annotations.get(keys.NODE_LOCK, "")
        record.epoch = node.annotations.get(keys.BIND_EPOCH, "")
        record.vendor_locks = texts_on(self._registry, node.annotations)
        record.lease_expired = node.lease_expired
        record.labels_match = all(node.labels.get(key) == value for key, value in self._settings.node_selector)
        for vendor in self._registry:
            self._apply_vendor(record, vendor, node, now_s, now_unix_s)
        record.other_allocatable = self._other_allocatable(node)
        return self._reconsider(record, _cordoned(node.annotations), now_s) or fresh

    def _is_past(self, node: Node, record: NodeRecord | None) -> bool:
        if record is None or record.uid != node.metadata.uid:
            return bool(node.metadata.uid) and self._removed.get(node.name) == node.metadata.uid
        return is_older(node.metadata.resource_version, record.resource_version)

    def remove(self, name: str) -> bool:
        record = self._nodes.pop(name, None)
        if len(self._removed) >= _MOST_REMOVED:
            del self._removed[next(iter(self._removed))]
        if record is not None or name not in self._removed:
            self._removed[name] = record.uid if record is not None else ""
        return record is not None

    def renamed(self, before: Mapping[str, str], now_s: float) -> list[str]:
        """Vendors' count resources have other names than `before` (by word): names of nodes whose cards changed.

        The nodes do not come again for that, so what kubelet offers under the new names is taken from what is known.
        """
        names = {vendor.word: vendor.count_resource for vendor in self._registry}
        if names == before:
            return []
        records = (record for record in self._nodes.values() if record.cards)
        return [record.name for record in records if self._rename(record, before, names, now_s)]

    def _rename(self, record: NodeRecord, before: Mapping[str, str], names: Mapping[str, str], now_s: float) -> bool:
        """One node of `renamed`: thousands of them are done in one tick, so only what matters is worked out again."""
        known = dict(record.other_allocatable)
        for word, cards in record.cards.items():
            if word in before and cards.allocatable is not None:
                known[before[word]] = cards.allocatable
        matters = False
        for word, cards in record.cards.items():
            was_out = self._out(cards, now_s)
            cards.allocatable = known.pop(names.get(word, ""), None)
            matters = matters or self._out(cards, now_s) != was_out
        record.other_allocatable = tuple(known.items())
        return matters and self._reconsider(record, record.view.cordoned, now_s)

    def _other_allocatable(self, node: Node) -> tuple[tuple[str, int | None], ...]:
        counted = [vendor.count_resource for vendor in self._registry]
        names = [name for name in node.status.allocatable or () if "/" in name and name not in counted]
        return tuple((name, allocatable(node, name)) for name in names)

    def expire(self, now_s: float) -> list[str]:
        """Names of nodes whose cards left because their deadline has passed."""
        changed = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            record = self._nodes.get(heapq.heappop(self._deadlines)[1])
            if record is not None:
                record.queued = False
                if self._reconsider(record, record.view.cordoned, now_s):
                    changed.append(record.name)
        return changed

    def _apply_vendor(
        self, record: NodeRecord, vendor: DeviceType, node: Node, now_s: float, now_unix_s: float
    ) -> None:
        cards = record.cards.get(vendor.word)
        if cards is None:
            if not node.annotations.get(vendor.register_key):
                return
            cards = record.cards[vendor.word] = VendorCards()
        cards.take(vendor, node, now_s, now_unix_s)

    def _reconsider(self, record: NodeRecord, cordoned: frozenset[str], now_s: float) -> bool:
        view = self._view(record, cordoned, now_s)
        self._queue_deadline(record, now_s)
        if view == record.view:
            return False
        record.view = view
        return True

    def _view(self, record: NodeRecord, cordoned: frozenset[str], now_s: float) -> CardsView:
        if not record.labels_match:
            return CardsView(problem=NODE_UNREGISTERED, cordoned=cordoned)
        if record.lease_expired:
            return CardsView(problem=f"{NODE_UNREGISTERED}: kubelet is not heard of any more", cordoned=cordoned)
        devices: tuple[Device, ...] = ()
        pair_scores: dict[str, dict[str, int]] = {}
        problem = ""
        for vendor in self._registry:
            cards = record.cards.get(vendor.word)
            if cards is None or not cards.is_registered:
                continue
            out = self._out(cards, now_s)
            if out:
                problem = problem or f"{NODE_UNREGISTERED}: {out}"
                continue
            devices += cards.devices
            pair_scores = {**pair_scores, **cards.pair_scores} if cards.pair_scores else pair_scores
        if devices:
            return CardsView(devices=devices, pair_scores=pair_scores, cordoned=cordoned)
        return CardsView(problem=problem or NODE_UNREGISTERED, cordoned=cordoned)

    def _out(self, cards: VendorCards, now_s: float) -> str:
        """Why the vendor's cards are out; empty if they are in."""
        if cards.problem:
            return cards.problem
        if not cards.devices:
            return "no cards registered"
        if cards.allocatable == 0:
            return "kubelet offers no allocatable devices"
        silent_s = now_s - cards.alive_at_s
        limit_s = self._settings.reported_limit_s
        if cards.kind is HandshakeKind.REPORTED and limit_s and silent_s >= limit_s and cards.silence_counts:
            return f"the device plugin has been silent for {limit_s:.0f} s"
        if cards.kind is HandshakeKind.REQUESTING and cards.allocatable is None and silent_s >= REQUESTING_LIMIT_S:
            return f"the device plugin has not answered for {REQUESTING_LIMIT_S:.0f} s"
        return ""

    def _queue_deadline(self, record: NodeRecord, now_s: float) -> None:
        if record.queued:
            return
        limits = {
            HandshakeKind.REPORTED: self._settings.reported_limit_s,
            HandshakeKind.REQUESTING: REQUESTING_LIMIT_S,
        }
        deadlines = [
            cards.alive_at_s + limits[cards.kind] for cards in record.cards.values() if limits.get(cards.kind, 0.0)
        ]
        ahead = [deadline for deadline in deadlines if deadline > now_s]
        if ahead:
            record.queued = True
            heapq.heappush(self._deadlines, (min(ahead), record.name))


def _cordoned(annotations: Mapping[str, str]) -> frozenset[str]:
    text = annotations.get(keys.DEVICE_CORDON, "")
    return frozenset(part.strip() for part in text.split(",") if part.strip()) if text else frozenset()
