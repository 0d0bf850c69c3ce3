"""`/filter` that answers with every node that fits, and their scores, for clusters whose own scoring decides (B49).

Nothing is reserved: which node kube-scheduler takes is known at `/bind`, which fits the pod there again in the tick in
which it commits. Two pods filtered at the same time may so choose the same last card; the second bind then fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from hami.core.device_type import Refusal
from hami.core.fit import Fit
from hami.core.model import PodRequest
from hami.core.objects import Pod
from hami.placement.answers import FilterAnswer
from hami.placement.claims import ClaimState
from hami.placement.names import NodeNames
from hami.placement.node_view import unregistered_text
from hami.placement.refusals import Evaluations
from hami.placement.slicer import Slicer
from hami.placement.world import World

MAX_PRIORITY: Final = 10
"""kube-scheduler's MaxExtenderPriority."""


class Filters(Protocol):
    """Decides for one node, or says why none will do."""

    async def filter_sliced(self, pod: Pod, names: NodeNames) -> FilterAnswer: ...


class AllFits:
    """Looks at all offered nodes. What is no matter of choice is left to `filters`: pods without devices, bound ones,
    bad input, and pods that fit nowhere."""

    def __init__(self, world: World, filters: Filters) -> None:
        self._world = world
        self._filters = filters

    async def filter(self, pod: Pod, names: NodeNames) -> FilterAnswer:
        """Every node that fits in `feasible`, in the order of the names, and a reason for each other one."""
        shape = self._world.shapes.of(pod)
        if not isinstance(shape, Refusal) and shape.asks_for_devices and not self._stands(pod):
            self._world.in_flight.call_off(pod.metadata.uid, "the pod was filtered again")
            self._world.ledger.end_reservation(pod.metadata.uid)
            feasible, failed = await self._look(pod, shape, names)
            if feasible and not self._stands(pod):
                self._world.waking.placed(pod.metadata.uid)
                return FilterAnswer(node=feasible[0], failed=failed, feasible=tuple(feasible))
        return await self._filters.filter_sliced(pod, names)

    async def scores(self, pod: Pod, names: Sequence[str]) -> dict[str, int]:
        """0 to 10 for each node, by the pod's node policy: the best of `names` has 10, the worst 0, as have nodes that
        come last in `/filter` for now."""
        shape = self._world.shapes.of(pod)
        self._world.settle_now()
        columns = self._world.columns
        back = self._world.set_back()
        places = {name: columns.place(name) for name in names if name not in back}
        found = {name: float(columns.scores[place]) for name, place in places.items() if place is not None}
        if isinstance(shape, Refusal) or not shape.asks_for_devices or not found:
            return dict.fromkeys(names, 0)
        low, span = min(found.values()), max(found.values()) - min(found.values())
        parts = {name: (score - low) / span if span else 1.0 for name, score in found.items()}
        spread = shape.policies.node == "spread" and bool(span)
        return {
            name: round(MAX_PRIORITY * (1.0 - parts[name] if spread else parts[name])) if name in parts else 0
            for name in names
        }

    def _stands(self, pod: Pod) -> bool:
        """Whether the pod is bound, being bound or past it, so that nothing changes for it (reports B26, B28)."""
        uid = pod.metadata.uid
        if pod.finished or pod.metadata.deletion_timestamp is not None:
            return True
        claim = self._world.ledger.get(uid)
        bound = claim is not None and (claim.pinned or claim.state is ClaimState.BOUND)
        return bound or bool(pod.spec.node_name or self._world.in_flight.writing_node(uid)) or self._world.is_gone(uid)

    async def _look(self, pod: Pod, shape: PodRequest, names: NodeNames) -> tuple[list[str], dict[str, str]]:
        slicer = Slicer(self._world.clock)
        self._world.settle_now()
        evaluations = Evaluations(shape, self._world.registry, self._world.quotas.room(pod.metadata.namespace))
        feasible: list[str] = []
        failed: dict[str, str] = {}
        for name in names.list():
            view = self._world.view(name)
            if view is None or view.problem:
                failed[name] = unregistered_text(view)
            elif isinstance(found := evaluations.of(name, view), Fit):
                feasible.append(name)
            else:
                failed[name] = found.text
            if slicer.due:
                await slicer.give_way()
                self._world.settle_now()
        return feasible, failed
