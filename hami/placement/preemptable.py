"""Refusals of pods that could push out others: which nodes kube-scheduler's preemption may try, or that it may not.

Refused nodes are unresolvable as a rule, so that preemption does not try them in vain (design 4). With the preempt verb
on, those stay open where pods of lower priority are in the way; with it off, the pod's events say so (report B50).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping

import msgspec

from hami.core.device_type import Refusal
from hami.core.fit import Fit, evaluate
from hami.core.keys import EVENT_FILTERING_FAILED
from hami.core.model import NO_USE, NodeState, PodRequest
from hami.core.objects import Node, Pod
from hami.placement.announce import Filters
from hami.placement.answers import EventText, FilterAnswer
from hami.placement.names import NodeNames
from hami.placement.node_view import NodeView
from hami.placement.slicer import Slicer
from hami.placement.world import World


class PreemptableFilters:
    """Decides by `filters`. `enabled`: kube-scheduler is configured with the preempt verb."""

    def __init__(self, filters: Filters, world: World, *, enabled: bool) -> None:
        self._filters = filters
        self._world = world
        self._enabled = enabled

    async def simulate(self, pod: Pod, nodes: Iterable[Node], *, all_feasible: bool = False) -> FilterAnswer:
        return await self._filters.simulate(pod, nodes, all_feasible=all_feasible)

    async def filter_sliced(self, pod: Pod, names: NodeNames) -> FilterAnswer:
        answer = await self._filters.filter_sliced(pod, names)
        if not answer.failed or (pod.spec.priority or 0) <= 0:
            return answer
        shape = self._world.shapes.of(pod)
        if isinstance(shape, Refusal):
            return answer
        open_nodes = await self._open(shape, answer.failed)
        if not open_nodes:
            return answer
        if not self._enabled:
            return dataclasses.replace(answer, narrate=_with_note(answer, len(open_nodes)))
        closed = {name: text for name, text in answer.unresolvable.items() if name not in open_nodes}
        return dataclasses.replace(answer, unresolvable=closed)

    async def _open(self, shape: PodRequest, failed: Mapping[str, str]) -> set[str]:
        """Nodes that would take the pod if no other pod were there."""
        slicer = Slicer(self._world.clock)
        by_id = any(selectors.use_ids or selectors.nouse_ids for _, selectors in shape.selectors)
        known: dict[object, bool] = {}
        found = set()
        for name in failed:
            view = self._world.view(name)
            if view is None or view.problem or not any(use != NO_USE for use in view.state.uses):
                continue
            kind = name if by_id else (view.hardware, view.state.cordoned)
            if kind not in known:
                known[kind] = self._fits_empty(view, shape)
                await slicer.give_way()
            if known[kind]:
                found.add(name)
        return found

    def _fits_empty(self, view: NodeView, shape: PodRequest) -> bool:
        empty: NodeState = msgspec.structs.replace(view.state, uses=(NO_USE,) * len(view.state.uses), mig_taken={})
        return isinstance(evaluate(empty, shape, self._world.registry), Fit)


def _with_note(answer: FilterAnswer, nodes: int) -> Callable[[], tuple[EventText, ...]]:
    def narrate() -> tuple[EventText, ...]:
        texts = answer.events
        # A refusal that is no news has no events, and no note either.
        words = f"preemption for cards is off: {nodes} nodes would take the pod if pods of lower priority left"
        return (*texts, (True, EVENT_FILTERING_FAILED, words)) if texts else ()

    return narrate
