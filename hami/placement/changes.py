"""The smallest single changes that would make a pod fit: less of something, a selector dropped, a card or a pod gone.

Every change is tried with the evaluator before it is named, so each one holds by itself. Amounts are found by halving:
that the largest fitting amount is named is sure only where less never fits worse.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from hami.core.device_type import DeviceType
from hami.core.fit import Fit, evaluate
from hami.core.keys import DEVICE_CORDON
from hami.core.model import NO_USE, DeviceRequest, NodeState, PodRequest
from hami.core.objects import Pod
from hami.core.quota import Room
from hami.placement.claims import Claim, flat_charges, words_of
from hami.placement.namespace_use import summed
from hami.placement.pod_edits import with_amount, without_annotation
from hami.placement.quotas import Raise
from hami.placement.world import World

_MOST_PODS_TRIED: Final = 2000

ShapeOf = Callable[[Pod], PodRequest | None]
Find = Callable[[PodRequest, Room | None], str]


class ChangeKind(enum.StrEnum):
    """What is changed."""

    MEMORY = "memory"
    CORES = "cores"
    CARDS = "cards"
    ANNOTATION = "annotation"
    UNCORDON = "uncordon"
    WAIT = "wait"
    QUOTA = "quota"


class Change(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change and the `node` that would then take the pod. Which fields are set depends on the kind."""

    kind: ChangeKind
    text: str
    node: str
    container: str = ""
    resource: str = ""
    value: int = 0
    annotation: str = ""
    card: str = ""
    pod: str = ""
    raises: tuple[Raise, ...] = ()
    part: float = 1.0
    """How much of the amount has to go, 0 to 1, to compare changes of amounts."""


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

    def all(self) -> tuple[Change, ...]:
        """At most one change of each kind; amounts first, the smallest part first."""
        amounts: dict[ChangeKind, Change] = {}
        for change in self._amounts():
            known = amounts.get(change.kind)
            if known is None or change.part < known.part:
                amounts[change.kind] = change
        others = (self._annotation(), self._uncordoned(), self._waiting(), self._raised_quota())
        ordered = sorted(amounts.values(), key=lambda change: change.part)
        return (*ordered, *(change for change in others if change is not None))

    def on_empty_node(self) -> str:
        """The first node that would take the pod if nothing ran there and no quota held; empty if none would."""
        return next((name for name, state in self._states() if self._fits(_emptied(state), None)), "")

    # Less of something

    def _amounts(self) -> Iterator[Change]:
        vendors = {vendor.word: vendor for vendor in self._world.registry}
        for index, container in enumerate(self._shape.containers):
            for asked in container.devices:
                vendor = vendors[asked.vendor]
                yield from self._less_memory(index, asked, vendor)
                yield from self._fewer_cores(index, asked, vendor)
                yield from self._fewer(ChangeKind.CARDS, index, vendor.count_resource, asked.count, 1)

    def _less_memory(self, index: int, asked: DeviceRequest, vendor: DeviceType) -> Iterator[Change]:
        names = vendor.quota_names
        if not names.memory:
            return
        factor = max(names.memory_factor, 1)
        if asked.memory_mib:
            yield from self._fewer(ChangeKind.MEMORY, index, names.memory, asked.memory_mib // factor, 1)
            return
        size_mib = self._largest_card(vendor.word) * asked.memory_percent // 100
        whose = f"{asked.memory_percent} % of the card"
        yield from self._fewer(ChangeKind.MEMORY, index, names.memory, size_mib // factor, 1, whose)

    def _fewer_cores(self, index: int, asked: DeviceRequest, vendor: DeviceType) -> Iterator[Change]:
        resource = vendor.quota_names.cores
        if not resource:
            return
        found = list(self._fewer(ChangeKind.CORES, index, resource, asked.core_percent, 1))
        if not found and asked.core_percent:
            found = list(self._fewer(ChangeKind.CORES, index, resource, 1, 0, str(asked.core_percent)))
        yield from found

    def _fewer(
        self, kind: ChangeKind, index: int, resource: str, amount: int, lowest: int, instead_of: str = ""
    ) -> Iterator[Change]:
        """The largest amount from `lowest` and below `amount` with which the pod fits."""
        best, node = -1, ""
        low, high = lowest, amount - 1
        while low <= high:
            middle = lowest if best < 0 else (low + high + 1) // 2
            found = self._place(with_amount(self._pod, index, resource, middle))
            if found:
                best, node, low = middle, found, middle + 1
            elif best < 0:
                return
            else:
                high = middle - 1
        if best >= 0:
            name = self._pod.containers[index].name
            text = f"ask for {resource}: {best} instead of {instead_of or amount} in container {name}"
            part = (amount - best) / amount
            yield Change(kind, text, node, container=name, resource=resource, value=best, part=part)

    def _place(self, pod: Pod) -> str:
        shape = self._shape_of(pod)
        return self._find(shape, self._room) if shape is not None and shape.asks_for_devices else ""

    def _largest_card(self, word: str) -> int:
        views = (self._world.view(name) for name in self._world.inventory.names())
        cards = (device for view in views if view is not None for device in view.state.devices)
        return max((device.memory_mib for device in cards if device.serves(word)), default=0)

    # Something else gone

    def _annotation(self) -> Change | None:
        for key, value in sorted(self._pod.annotations.items()):
            changed = self._shape_of(without_annotation(self._pod, key))
            if changed is None or changed == self._shape or not changed.asks_for_devices:
                continue
            node = self._find(changed, self._room)
            if node:
                text = f"drop the annotation {key}: {value}"
                return Change(ChangeKind.ANNOTATION, text, node, annotation=key)
        return None

    def _uncordoned(self) -> Change | None:
        for name, state in self._states():
            for device in state.devices if state.cordoned else ():
                if device.id not in state.cordoned:
                    continue
                freed = msgspec.structs.replace(state, cordoned=state.cordoned - {device.id})
                if self._fits(freed, self._room):
                    text = f"take card {device.id} of node {name} out of the annotation {DEVICE_CORDON}"
                    return Change(ChangeKind.UNCORDON, text, name, card=device.id)
        return None

    def _waiting(self) -> Change | None:
        """The pod that holds least of those whose end would do."""
        roomy = {name for name, state in self._states() if self._fits(_emptied(state), None)}
        claims = [claim for claim in self._world.ledger.claims() if self._in_the_way(claim, roomy)]
        for claim in sorted(claims, key=lambda claim: (_held(claim), claim.key))[:_MOST_PODS_TRIED]:
            node = self._node_without(claim)
            if node:
                held = _held(claim)
                text = f"wait until pod {claim.key} ends, which holds {held[0]} MiB and {held[1]} % cores"
                return Change(ChangeKind.WAIT, f"{text} on node {claim.node}", node, pod=claim.key)
        return None

    def _in_the_way(self, claim: Claim, roomy: set[str]) -> bool:
        if claim.uid == self._pod.metadata.uid or not claim.charges:
            return False
        return claim.node in roomy or (self._room is not None and claim.namespace == self._namespace)

    def _node_without(self, claim: Claim) -> str:
        room = self._world.quotas.room(self._namespace, claim)
        state = self._world.state_without(claim.node, claim.uid)
        view = self._world.view(claim.node)
        if state is not None and view is not None and not view.problem and self._fits(state, room):
            return claim.node
        return self._find(self._shape, room) if room != self._room else ""

    def _raised_quota(self) -> Change | None:
        if self._room is None:
            return None
        node = self._find(self._shape, None)
        view = self._world.view(node) if node else None
        found = evaluate(view.state, self._shape, self._world.registry) if view is not None else None
        if not isinstance(found, Fit):
            return None
        charges = flat_charges(found.charge)
        raises = self._world.quotas.raises(self._namespace, summed(words_of(found.charge, found.allocation), charges))
        words = [f"{each.key} of resource quota {each.quota} from {each.old} to {each.new}" for each in raises]
        text = f"raise {' and '.join(words)} in namespace {self._namespace}"
        return Change(ChangeKind.QUOTA, text, node, raises=raises)

    def _states(self) -> Iterator[tuple[str, NodeState]]:
        for name in sorted(self._world.inventory.names()):
            view = self._world.view(name)
            if view is not None and not view.problem:
                yield name, view.state

    def _fits(self, state: NodeState, room: Room | None) -> bool:
        return isinstance(evaluate(state, self._shape, self._world.registry, room), Fit)


def _emptied(state: NodeState) -> NodeState:
    """The node without any pod."""
    return msgspec.structs.replace(state, uses=(NO_USE,) * len(state.uses), mig_taken={})


def _held(claim: Claim) -> tuple[int, int]:
    """MiB and percent of cores."""
    total = sum((use for _, use in claim.charges), start=NO_USE)
    return total.memory_mib, total.core_percent
