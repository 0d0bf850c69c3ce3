"""Inventory, ledger and columns as one consistent view, fed with typed objects by the reflectors.

Single-threaded: every method runs on the event loop. Changes only mark nodes dirty; `settle_now` brings the derived
values (evaluator's state, columns, revision) up to date before a decision, `settle` does so in slices after bulk loads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set
from typing import Final

import msgspec

from hami.core import keys
from hami.core.device_type import Registry
from hami.core.model import NO_USE, NodeState, Policies
from hami.core.objects import Node, ObjectMeta, Pod, PodSpec, PodStatus
from hami.placement.card_sets import CardSets
from hami.placement.claims import ClaimState
from hami.placement.columns import Columns
from hami.placement.crowd import Crowd
from hami.placement.in_flight import InFlight
from hami.placement.inventory import CardsView, Inventory, InventorySettings
from hami.placement.ledger import Ledger
from hami.placement.listings import NodeListing, PodListing
from hami.placement.node_view import NodeView, may_take_more, unknown_ids
from hami.placement.ports import Clock
from hami.placement.quotas import Quotas
from hami.placement.recent_uids import RecentUids
from hami.placement.rejections import Rejections
from hami.placement.rules import LiveRegistry, live
from hami.placement.shapes import Shapes
from hami.placement.signals import Signals
from hami.placement.slicer import Slicer
from hami.placement.stalled import Stalled
from hami.placement.waking import Waking

SWEEP_S: Final = 5.0


class World:
    """Everything that decisions are made from."""

    def __init__(
        self,
        registry: Registry,
        defaults: Policies,
        clock: Clock,
        *,
        node_label_selector: tuple[tuple[str, str], ...] = (),
        reported_limit_s: float = 90.0,
    ) -> None:
        """`reported_limit_s`: see InventorySettings; 0 where plugins run with `--heartbeat on-change`."""
        self.registry: LiveRegistry = live(registry)
        self.defaults = defaults
        self.clock = clock
        self.shapes = Shapes(self.registry, defaults)
        self.inventory = Inventory(self.registry, InventorySettings(reported_limit_s, node_label_selector))
        self.ledger = Ledger(self.registry)
        self.quotas = Quotas(self.registry, self.ledger.namespaces)
        self.on_rules: list[Callable[[], None]] = [self.shapes.forget, self.quotas.renew, self._forget_plain]
        """Called, in the same tick, after other rules came into force: memos that rest on them are dropped."""
        self.columns = Columns()
        self.in_flight = InFlight()
        self.signals = Signals()
        self.waking = Waking(clock)
        self.rejections = Rejections()
        self.crowd = Crowd()
        self.stalled = Stalled()
        self._views: dict[str, NodeView] = {}
        self._dirty: dict[str, None] = {}
        self._card_sets = CardSets()
        self._revision = 0
        self._plain = RecentUids()
        self._gone = RecentUids()
        self._ended = RecentUids()
        """Pods that held something and have finished: what was read before that says nothing any more."""
        self._nodes_synced = False
        self._pods_synced = False

    @property
    def synced(self) -> bool:
        """Both kinds of objects have been seen completely at least once."""
        return self._nodes_synced and self._pods_synced

    @property
    def unknown_ids(self) -> dict[str, tuple[str, ...]]:
        """Node -> card ids that pods hold there and the node does not register."""
        return {name: view.unknown_ids for name, view in self._views.items() if view.unknown_ids}

    # Feeding

    def on_node(self, node: Node, *, listed: bool = False) -> None:
        """A node was added or changed, or is part of a complete list."""
        changed = self.inventory.apply(node, self.clock.monotonic_s(), self.clock.unix_s(), listed=listed)
        if changed or node.name not in self._views:
            self._dirty[node.name] = None
        self.stalled.saw(node)
        self.waking.changed()
        self.signals.fire(f"node/{node.name}")

    def on_node_deleted(self, name: str, uid: str = "") -> None:
        """The node is gone; nothing happens where another one has its name by now."""
        record = self.inventory.get(name)
        if uid and record is not None and record.uid != uid:
            return
        self.rejections.forget(name)
        self.stalled.forget(name)
        if self.inventory.remove(name):
            self._dirty[name] = None
        self.signals.fire(f"node/{name}")

    def on_pod(self, pod: Pod) -> None:
        """A pod was added or changed. What was read before its end and comes after it says nothing any more."""
        uid = pod.metadata.uid
        if uid in self._gone or (uid in self._ended and not pod.finished):
            return
        if pod.finished and self.ledger.get(uid) is not None:
            self._ended.add(uid)
        before = self.ledger.by_key(pod.metadata.namespace, pod.metadata.name)
        self.ledger.apply(pod, self.clock.monotonic_s(), self.clock.unix_s())
        if before is not None and before.uid != uid and self.ledger.get(before.uid) is None:
            self._is_gone(before.uid, before.key)
        self.waking.changed()
        self.signals.fire(f"pod/{pod.key}")

    def on_pod_deleted(self, namespace: str, name: str, uid: str) -> None:
        self._is_gone(uid, f"{namespace}/{name}")
        self.ledger.forget(uid)
        self.in_flight.call_off(uid, "the pod was deleted")
        self.waking.changed()
        self.signals.fire(f"pod/{namespace}/{name}")

    def _is_gone(self, uid: str, key: str) -> None:
        """A uid never comes again; a name does, and stands for a uid where a simple client sent none."""
        if uid != key:
            self._gone.add(uid)

    def on_quota_changed(self) -> None:
        """Quotas allow other things than before. kube-scheduler does not watch them."""
        self.waking.unseen_room(next(iter(self._views), ""))

    def take_rules(self, vendors: Registry) -> None:
        """Other rules (names, defaults, factors) from now on, for every decision after this tick."""
        before = self.registry.count_resources()
        self.registry.take(vendors)
        for forget in self.on_rules:
            forget()
        self._dirty.update(dict.fromkeys(self.inventory.renamed(before, self.clock.monotonic_s())))
        self.waking.unseen_room(next(iter(self._views), ""))

    def on_listed_pod(self, pod: Pod) -> None:
        """A pod of a complete list, which is believed also where it brings back what was deleted: etcd may have been
        restored."""
        self._gone.discard(pod.metadata.uid)
        self._ended.discard(pod.metadata.uid)
        self.on_pod(pod)

    def node_listing(self) -> NodeListing:
        """Takes a list of all nodes page by page."""
        return NodeListing(self)

    def pod_listing(self) -> PodListing:
        """Takes a list of all pods page by page."""
        return PodListing(self)

    async def nodes_complete(self) -> None:
        """Every node has been taken."""
        if self._pods_synced:
            await self.settle()
        self._nodes_synced = True

    async def pods_complete(self) -> None:
        """Every pod has been taken."""
        if self._nodes_synced:
            await self.settle()
        self._pods_synced = True

    async def settle_if_synced(self) -> None:
        """In the middle of a list: before the first state is complete nobody decides, and settling can wait."""
        if self.synced:
            await self.settle()

    def node_pods_listed(self, node: str, pods: Iterable[Pod], known: Set[str]) -> None:
        """Takes a consistent list of the pods on one node: what else was bound there is gone, of the uids that were
        `known` there when it was asked for."""
        uids = set()
        for pod in pods:
            uids.add(pod.metadata.uid)
            self.on_pod(pod)
        for uid in known - uids:
            claim = self.ledger.get(uid)
            if claim is not None and claim.node == node and claim.state is ClaimState.BOUND:
                self.ledger.forget(uid)

    # Reading

    def view(self, name: str) -> NodeView | None:
        """The node as decisions see it; None if it is not known. Call `settle_now` first."""
        return self._views.get(name)

    def state_without(self, name: str, uid: str) -> NodeState | None:
        """The evaluator's state of a node as if one pod held nothing there."""
        view = self._views.get(name)
        if view is None:
            return None
        claim = self.ledger.get(uid)
        if claim is None or claim.node != name:
            return view.state
        record = self.inventory.get(name)
        return self._state(name, record.view, without_uid=uid) if record is not None else None

    def owner_on_record(self, namespace: str, name: str) -> Pod | None:
        """A bound pod as far as the ledger vouches for it, to judge a token without a read; None if it does not."""
        claim = self.ledger.by_key(namespace, name)
        if claim is None or claim.state is not ClaimState.BOUND:
            return None
        meta = ObjectMeta(namespace=namespace, name=name, uid=claim.uid, annotations={keys.BIND_PHASE: claim.phase})
        return Pod(metadata=meta, spec=PodSpec(node_name=claim.node), status=PodStatus(phase="Pending"))

    def set_back(self) -> set[str]:
        """Nodes that come last in every choice for now, whatever the policy. A restart forgets them."""
        return self.rejections.set_back(self.clock.monotonic_s()) | self.crowd.nodes | self.stalled.nodes

    def remember_plain(self, uid: str) -> None:
        """The pod asks for no devices: its bind needs no look at it."""
        self._plain.add(uid)

    def is_plain(self, uid: str) -> bool:
        return uid in self._plain

    def _forget_plain(self) -> None:
        """Under other names of resources they may ask for devices."""
        self._plain = RecentUids()

    def is_gone(self, uid: str) -> bool:
        """Whether the watch has lately shown the pod's deletion."""
        return uid in self._gone

    # Keeping derived values true

    async def sweep(self) -> None:
        """Runs until cancelled: lets nodes and reservations age while no decision asks for them."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.settle()

    def settle_now(self) -> None:
        """Brings everything up to date. Cheap unless a bulk load has just happened: see `settle`."""
        self._age()
        while name := self._next_dirty():
            self._refresh(name)

    async def settle(self) -> None:
        """The same in slices."""
        slicer = Slicer(self.clock)
        self._age()
        while name := self._next_dirty():
            self._refresh(name)
            await slicer.give_way()

    def _age(self) -> None:
        now_s = self.clock.monotonic_s()
        self.ledger.expire(now_s)
        self._dirty.update(dict.fromkeys(self.inventory.expire(now_s)))
        for name in self.rejections.expire(now_s):
            self._dirty[name] = None
            if not self.rejections.problem(name):
                self.waking.unseen_room(name)

    def _next_dirty(self) -> str:
        if self.ledger.dirty:
            self._dirty.update(dict.fromkeys(self.ledger.dirty))
            self.ledger.dirty.clear()
        return self._dirty.popitem()[0] if self._dirty else ""

    def _refresh(self, name: str) -> None:
        record = self.inventory.get(name)
        if record is None:
            self._views.pop(name, None)
            self.columns.remove(name)
            return
        cards = record.view
        uses = self.ledger.uses(name)
        state = self._state(name, cards)
        problem = cards.problem or self._blocked(name) or self.rejections.problem(name)
        self._revision += 1
        known = self._views.get(name)
        if known is not None and known.state.devices is state.devices:
            hardware = known.hardware
        else:
            hardware = self._card_sets.number_of(state.devices)
        self._views[name] = NodeView(state, problem, self._revision, hardware, unknown_ids(cards, uses))
        if not problem and (known is None or known.problem or may_take_more(known.state, state)):
            self.waking.room(name)
        if problem:
            self.columns.remove(name)
        else:
            self.columns.update(state)

    def _state(self, name: str, cards: CardsView, without_uid: str = "") -> NodeState:
        """The evaluator's state, as if pod `without_uid` held nothing."""
        uses = self.ledger.uses(name)
        claim = self.ledger.get(without_uid) if without_uid else None
        own = dict(claim.charges) if claim is not None and claim.node == name else {}
        mig_cards = [device.id for device in cards.devices if device.mode == "mig"]
        unknown = self.ledger.unsliced(name, mig_cards, without_uid) if mig_cards else ()
        devices = cards.devices
        if unknown:
            devices = tuple(
                msgspec.structs.replace(device, healthy=False) if device.id in unknown else device for device in devices
            )
        taken = [uses.get(device.id, NO_USE) for device in devices]
        for position, device in enumerate(devices) if own else ():
            taken[position] = taken[position].minus(own.get(device.id, NO_USE))
        return NodeState(
            name=name,
            devices=devices,
            uses=tuple(taken),
            cordoned=cards.cordoned,
            pair_scores=cards.pair_scores,
            mig_taken=self.ledger.slices(name, without_uid) if mig_cards else {},
        )

    def _blocked(self, name: str) -> str:
        problem = self.ledger.problem(name)
        return f"takes no new shares: {problem}" if problem else ""
