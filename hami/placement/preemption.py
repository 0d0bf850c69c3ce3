"""Which pods would have to go so that a pod of higher priority fits: kube-scheduler's preempt verb (report B50).

kube-scheduler asks about nodes for which its own dry run, which knows nothing of cards, found victims. Those stay; to
them come as few of the node's pods of lower priority as the cards need. Disruption budgets are kept: a pod that one
protects is never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, Protocol

import msgspec

from hami.core.budgets import DisruptionBudget, within_budgets
from hami.core.device_type import Refusal
from hami.core.fit import Fit, evaluate
from hami.core.model import NO_USE, PodRequest
from hami.core.objects import Pod
from hami.placement.node_after import node_after
from hami.placement.slicer import Slicer
from hami.placement.world import World

_ALL_SETS_UP_TO: Final = 10
"""Pods of which every set is tried; with more, pods are spared one after another."""


class Victims(msgspec.Struct, frozen=True):
    """Pods (uids) to evict from one node, and how many budgets kube-scheduler says that violates."""

    uids: tuple[str, ...]
    budget_violations: int = 0


class Evictable(Protocol):
    """Consistent reads. Each call raises the ApiError family or TransportError."""

    async def list_pods_on_node(self, node: str) -> list[Pod]: ...

    async def list_disruption_budgets(self) -> list[DisruptionBudget]: ...


class Preemption:
    """Answers for one world."""

    def __init__(self, world: World, reads: Evictable) -> None:
        self._world = world
        self._reads = reads

    async def victims(self, pod: Pod, proposed: Mapping[str, Victims]) -> dict[str, Victims]:
        """For each node that the pod would fit on: who has to go. Nodes that no eviction helps are left out."""
        shape = self._world.shapes.of(pod)
        if isinstance(shape, Refusal) or not proposed:
            return {}
        if not shape.asks_for_devices:
            return dict(proposed)
        budgets = await self._reads.list_disruption_budgets()
        slicer = Slicer(self._world.clock)
        found: dict[str, Victims] = {}
        for node, asked in proposed.items():
            pods = await self._reads.list_pods_on_node(node)
            self._world.settle_now()
            search = _NodeSearch(self._world, shape, pod, node, pods, budgets, asked)
            uids = await search.smallest(slicer)
            if uids is not None:
                found[node] = Victims((*asked.uids, *uids), asked.budget_violations)
        return found


class _NodeSearch:
    """One node. Pods that are ending already count as gone."""

    def __init__(
        self,
        world: World,
        shape: PodRequest,
        pod: Pod,
        node: str,
        pods: Sequence[Pod],
        budgets: Sequence[DisruptionBudget],
        asked: Victims,
    ) -> None:
        self._world = world
        self._shape = shape
        self._pod = pod
        self._node = node
        self._budgets = budgets
        going = [each for each in pods if each.metadata.uid in asked.uids]
        self._proposed = going
        self._gone = {each.metadata.uid for each in (*going, *(each for each in pods if _ending(each)))}
        self._held = {uid: _held(world, uid) for uid in world.ledger.uids_on(node)}
        others = (each for each in pods if each.metadata.uid not in self._gone and _weight(each) < _weight(pod))
        self._others = sorted(
            (each for each in others if any(self._held.get(each.metadata.uid, (0, 0, 0)))), key=self._order
        )

    async def smallest(self, slicer: Slicer) -> tuple[str, ...] | None:
        """The pods to add to the proposed ones, fewest and smallest; None if none would do."""
        if self._fits(()):
            return ()
        sets = self._all_sets() if len(self._others) <= _ALL_SETS_UP_TO else self._spared()
        for chosen in sets:
            await slicer.give_way()
            if self._may_go(chosen) and self._fits(chosen):
                return tuple(each.metadata.uid for each in chosen)
        return None

    def _all_sets(self) -> Iterator[tuple[Pod, ...]]:
        """Every set, the cheapest first: lowest priorities, then least memory and cores held, then fewest pods."""
        sizes = range(1, len(self._others) + 1)
        sets = [chosen for size in sizes for chosen in combinations(self._others, size)]
        yield from sorted(sets, key=self._cost)

    def _spared(self) -> Iterator[tuple[Pod, ...]]:
        """Single pods first; then what is left when pods are spared, the most important first, as long as it fits."""
        yield from ((each,) for each in self._others)
        chosen: list[Pod] = []
        for each in self._others:
            if self._may_go([*chosen, each]):
                chosen.append(each)
        if not self._fits(chosen):
            return
        for each in reversed(self._others):
            without = [other for other in chosen if other is not each]
            if len(without) < len(chosen) and self._fits(without):
                chosen = without
        yield tuple(chosen)

    def _cost(self, chosen: Sequence[Pod]) -> tuple[int, int, int, int, tuple[str, ...]]:
        memory = sum(self._held[each.metadata.uid][0] for each in chosen)
        cores = sum(self._held[each.metadata.uid][1] for each in chosen)
        keys = tuple(each.key for each in chosen)
        return max(map(_weight, chosen)), memory, cores, len(chosen), keys

    def _order(self, pod: Pod) -> tuple[int, int, int, str]:
        memory, cores, _ = self._held.get(pod.metadata.uid, (0, 0, 0))
        return _weight(pod), memory, cores, pod.key

    def _may_go(self, chosen: Sequence[Pod]) -> bool:
        """Whether the budgets allow these beside the proposed ones, for which kube-scheduler has counted itself."""
        protected = [budget for budget in self._budgets if any(budget.protects(each) for each in chosen)]
        return within_budgets((*self._proposed, *chosen), protected)

    def _fits(self, chosen: Iterable[Pod]) -> bool:
        gone = self._gone | {each.metadata.uid for each in chosen}
        state = node_after(self._world, self._node, gone)
        if state is None:
            return False
        claims = [self._world.ledger.get(uid) for uid in gone]
        room = self._world.quotas.room(self._pod.metadata.namespace, *claims)
        return isinstance(evaluate(state, self._shape, self._world.registry, room), Fit)


def _held(world: World, uid: str) -> tuple[int, int, int]:
    """MiB, percent of cores and shares."""
    claim = world.ledger.get(uid)
    total = sum((use for _, use in claim.charges), start=NO_USE) if claim is not None else NO_USE
    return total.memory_mib, total.core_percent, total.slots


def _weight(pod: Pod) -> int:
    return pod.spec.priority or 0


def _ending(pod: Pod) -> bool:
    return pod.finished or bool(pod.metadata.deletion_timestamp)
