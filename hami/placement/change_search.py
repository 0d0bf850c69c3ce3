"""The smallest changes that would make a pod fit: single ones; pairs where no single one would do; else more together.

Every change is tried with the evaluator before it is named, so each one holds by itself. Amounts are found by halving:
that the largest fitting amount is named is sure only where less never fits worse.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

import msgspec

from hami.core.device_type import DeviceType
from hami.core.fit import Fit, evaluate
from hami.core.model import NO_USE, DeviceRequest, NodeState, PodRequest
from hami.core.objects import Pod
from hami.core.quota import Room
from hami.placement.change_edits import Teller
from hami.placement.change_pairs import Pair, PairSearch
from hami.placement.change_sets import SetSearch
from hami.placement.changes import (
    Change,
    ChangeKind,
    amount_change,
    annotation_change,
    held,
    quota_change,
    uncordon_change,
    wait_change,
)
from hami.placement.claims import Claim
from hami.placement.pod_edits import with_amount, without_annotation
from hami.placement.what_if import Amount, Find, Scene, ShapeOf, Stage
from hami.placement.world import World

_MOST_PODS_TRIED: Final = 2000


class ChangeSearch:
    """Looks for changes for one pod that does not fit. `find` says which node takes a shape."""

    def __init__(self, world: World, shape_of: ShapeOf, find: Find, pod: Pod, shape: PodRequest) -> None:
        self._world = world
        self._shape_of = shape_of
        self._find = find
        self._pod = pod
        self._shape = shape
        self._namespace = pod.metadata.namespace
        self._room = world.quotas.room(self._namespace)
        self._stage = Stage(world, shape_of, find, self._namespace)
        self._start = Scene(pod)
        self._teller = Teller(world, self._stage, self._start)

    def singles(self) -> tuple[Change, ...]:
        """At most one change of each kind; amounts first, the smallest part first."""
        amounts: dict[ChangeKind, Change] = {}
        for kind, amount in self._amounts():
            change = self._fewer(kind, amount)
            known = amounts.get(kind)
            if change is not None and (known is None or change.part < known.part):
                amounts[kind] = change
        others = (self._annotation(), self._uncordoned(), self._waiting(), self._raised_quota())
        ordered = sorted(amounts.values(), key=lambda change: change.part)
        return (*ordered, *(change for change in others if change is not None))

    def pairs(self) -> tuple[Pair, ...]:
        """Two changes together, for a pod that no single one helps."""
        amounts, annotations = list(self._amounts()), self._telling_annotations()
        plain = functools.reduce(without_annotation, annotations, self._pod)
        least = functools.reduce(
            lambda pod, each: with_amount(pod, each[1].index, each[1].resource, each[1].lowest), amounts, plain
        )
        in_the_way = [claim for pod in (plain, least) for claim in self._in_the_way(self._roomy_for(pod))]
        return PairSearch(self._world, self._teller, amounts, annotations, _each_once(in_the_way)).all()

    def together(self) -> tuple[Change, ...]:
        """More changes together, for a pod that no two help; none can be left out."""
        return SetSearch(self._world, self._teller, list(self._amounts()), self._telling_annotations()).smallest()

    def on_empty_node(self) -> str:
        """The first node that would take the pod if nothing ran there and no quota held; empty if none would."""
        return next((name for name, state in self._states() if self._fits(_emptied(state), None)), "")

    # Less of something

    def _amounts(self) -> Iterator[tuple[ChangeKind, Amount]]:
        """What may be lowered, and how far."""
        vendors = {vendor.word: vendor for vendor in self._world.registry}
        for index, container in enumerate(self._shape.containers):
            for asked in container.devices:
                vendor = vendors[asked.vendor]
                names = vendor.quota_names
                if names.memory:
                    yield ChangeKind.MEMORY, self._memory(index, asked, vendor)
                if names.cores:
                    yield ChangeKind.CORES, Amount(index, names.cores, asked.core_percent, 0)
                yield ChangeKind.CARDS, Amount(index, vendor.count_resource, asked.count, 1)

    def _memory(self, index: int, asked: DeviceRequest, vendor: DeviceType) -> Amount:
        names = vendor.quota_names
        factor = max(names.memory_factor, 1)
        if asked.memory_mib:
            return Amount(index, names.memory, asked.memory_mib // factor, 1)
        size_mib = self._largest_card(vendor.word) * asked.memory_percent // 100
        return Amount(index, names.memory, size_mib // factor, 1, f"{asked.memory_percent} % of the card")

    def _fewer(self, kind: ChangeKind, amount: Amount) -> Change | None:
        """The largest value from the lowest and below the amount with which the pod fits."""
        best, node = -1, ""
        low, high = amount.lowest, amount.amount - 1
        while low <= high:
            middle = amount.lowest if best < 0 else (low + high + 1) // 2
            found = self._stage.place(self._start.lowered(amount, middle))
            if found:
                best, node, low = middle, found, middle + 1
            elif best < 0:
                return None
            else:
                high = middle - 1
        return amount_change(kind, self._pod, amount, best, node) if best >= 0 else None

    def _largest_card(self, word: str) -> int:
        views = (self._world.view(name) for name in self._world.inventory.names())
        cards = (device for view in views if view is not None for device in view.state.devices)
        return max((device.memory_mib for device in cards if device.serves(word)), default=0)

    # Something else gone

    def _telling_annotations(self) -> list[str]:
        """Keys without which the request would be another one."""
        keys = []
        for key in sorted(self._pod.annotations):
            changed = self._shape_of(without_annotation(self._pod, key))
            if changed is not None and changed != self._shape and changed.asks_for_devices:
                keys.append(key)
        return keys

    def _annotation(self) -> Change | None:
        for key in self._telling_annotations():
            node = self._stage.place(self._start.without(key))
            if node:
                return annotation_change(self._pod, key, node)
        return None

    def _uncordoned(self) -> Change | None:
        for name, state in self._states():
            for device in state.devices if state.cordoned else ():
                if device.id not in state.cordoned:
                    continue
                freed = msgspec.structs.replace(state, cordoned=state.cordoned - {device.id})
                if self._fits(freed, self._room):
                    return uncordon_change(name, device.id, name)
        return None

    def _waiting(self) -> Change | None:
        """The pod that holds least of those whose end would do."""
        roomy = {name for name, state in self._states() if self._fits(_emptied(state), None)}
        for claim in self._in_the_way(roomy)[:_MOST_PODS_TRIED]:
            node = self._node_without(claim)
            if node:
                return wait_change(claim, node)
        return None

    def _in_the_way(self, roomy: set[str]) -> list[Claim]:
        """Pods on nodes that would take the pod if they were empty, or that the quota counts; the smallest first."""
        found = [
            claim
            for claim in self._world.ledger.claims()
            if claim.uid != self._pod.metadata.uid
            and claim.charges
            and (claim.node in roomy or (self._room is not None and claim.namespace == self._namespace))
        ]
        return sorted(found, key=lambda claim: (held(claim), claim.key))

    def _node_without(self, claim: Claim) -> str:
        room = self._world.quotas.room(self._namespace, claim)
        state = self._world.state_without(claim.node, claim.uid)
        view = self._world.view(claim.node)
        if state is not None and view is not None and not view.problem and self._fits(state, room):
            return claim.node
        return self._find(self._shape, room) if room != self._room else ""

    def _raised_quota(self) -> Change | None:
        raised = msgspec.structs.replace(self._start, quota_raised=True)
        node = self._stage.place(raised) if self._room is not None else ""
        return quota_change(self._world, self._stage, raised, node) if node else None

    def _roomy_for(self, pod: Pod) -> set[str]:
        """Nodes that would take the pod if nothing ran there and all cards were in use."""
        shape = self._shape_of(pod)
        empty = (
            (name, msgspec.structs.replace(_emptied(state), cordoned=frozenset())) for name, state in self._states()
        )
        return {name for name, state in empty if self._takes(state, shape)}

    def _states(self) -> Iterator[tuple[str, NodeState]]:
        for name in sorted(self._world.inventory.names()):
            view = self._world.view(name)
            if view is not None and not view.problem:
                yield name, view.state

    def _fits(self, state: NodeState, room: Room | None) -> bool:
        return self._takes(state, self._shape, room)

    def _takes(self, state: NodeState, shape: PodRequest | None, room: Room | None = None) -> bool:
        return shape is not None and isinstance(evaluate(state, shape, self._world.registry, room), Fit)


def _each_once(claims: list[Claim]) -> list[Claim]:
    return list({claim.uid: claim for claim in claims}.values())


def _emptied(state: NodeState) -> NodeState:
    """The node without any pod."""
    return msgspec.structs.replace(state, uses=(NO_USE,) * len(state.uses), mig_taken={})
