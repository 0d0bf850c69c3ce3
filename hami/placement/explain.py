"""Why a pod fits or not: every node's outcome, every card's checks, and what would make it fit (issue 5).

Works on a `World` of its own, fed from one look at the cluster or from a dump: it ends the pod's own reservation there.
The outcome is the evaluator's, over the same candidates in the same order as in `/filter`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from hami.core.device_type import Refusal
from hami.core.explain import NodeReport, explain
from hami.core.fit import Fit
from hami.core.model import PodRequest
from hami.core.objects import Pod
from hami.core.quota import Excess, Room
from hami.core.reasons import Reason, Rejection
from hami.placement.change_pairs import Pair
from hami.placement.change_search import ChangeSearch
from hami.placement.changes import Change
from hami.placement.node_view import unregistered_text
from hami.placement.refusals import Evaluations
from hami.placement.shapes import Shapes
from hami.placement.world import World

Prepare = Callable[[Pod], Pod | Refusal]
"""What admission makes of a pod; for one that went through admission already, the pod itself."""


class NodeAnswer(msgspec.Struct, frozen=True):
    """One node: `text` is what kube-scheduler is told, empty if the pod fits; no `report` if it takes no shares."""

    name: str
    text: str
    report: NodeReport | None = None


class Explanation(msgspec.Struct, frozen=True):
    """`node` is where `/filter` would place the pod now, empty if nowhere; `passthrough`: it asks for no devices."""

    pod: Pod
    """As admission leaves it."""
    node: str = ""
    passthrough: bool = False
    refusal: str = ""
    """The pod cannot be evaluated or is refused at admission."""
    request: PodRequest | None = None
    nodes: tuple[NodeAnswer, ...] = ()
    excess: Excess | None = None
    """The limit of the namespace's quota that keeps it out somewhere."""
    changes: tuple[Change, ...] = ()
    """Each alone would make it fit; the smallest first."""
    pairs: tuple[Pair, ...] = ()
    """Where no single change would do: two that do together."""
    together: tuple[Change, ...] = ()
    """Where no two would do: more that do together, none of which can be left out."""
    on_empty_node: str = ""
    """For a pod that does not fit: a node that would take it if nothing ran there; empty if none would."""

    @property
    def fits(self) -> bool:
        return self.passthrough or bool(self.node)


class Explainer:
    """Answers for pods against one world."""

    def __init__(self, world: World, prepare: Prepare | None = None) -> None:
        self._world = world
        self._prepare = prepare
        self._shapes = Shapes(world.registry, world.defaults)

    def explain(self, pod: Pod) -> Explanation:
        """The whole story of one pod that has no node yet."""
        ready = self._ready(pod)
        if isinstance(ready, Refusal):
            return Explanation(pod, refusal=ready.message)
        shape = self._shapes.of(ready)
        if isinstance(shape, Refusal):
            return Explanation(ready, refusal=shape.message)
        if not shape.asks_for_devices:
            return Explanation(ready, passthrough=True)
        self._world.ledger.end_reservation(pod.metadata.uid)
        self._world.settle_now()
        room = self._world.quotas.room(pod.metadata.namespace)
        node = self.find(shape, room)
        nodes = tuple(self._answer(name, shape, room) for name in sorted(self._world.inventory.names()))
        excess = self._excess(ready, shape, nodes)
        if node:
            return Explanation(ready, node, request=shape, nodes=nodes, excess=excess)
        search = ChangeSearch(self._world, self._shape_of, self.find, pod, shape)
        empty, singles = search.on_empty_node(), search.singles()
        pairs = search.pairs() if not singles else ()
        together = search.together() if not singles and not pairs else ()
        if len(together) == 2:
            pairs, together = ((together[0], together[1]),), ()
        return Explanation(
            ready,
            request=shape,
            nodes=nodes,
            excess=excess,
            changes=singles,
            pairs=pairs,
            together=together,
            on_empty_node=empty,
        )

    def find(self, shape: PodRequest, room: Room | None) -> str:
        """The node that `/filter` would choose among all; empty if none fits."""
        columns = self._world.columns
        evaluations = Evaluations(shape, self._world.registry, room)
        spread = shape.policies.node == "spread"
        for place in columns.ranked(columns.candidates(shape), spread=spread):
            name = columns.name(place)
            view = self._world.view(name)
            if view is not None and not view.problem and isinstance(evaluations.of(name, view), Fit):
                return name
        return ""

    def _ready(self, pod: Pod) -> Pod | Refusal:
        return self._prepare(pod) if self._prepare is not None else pod

    def _shape_of(self, pod: Pod) -> PodRequest | None:
        """The request of a changed pod; None if it would be refused."""
        ready = self._ready(pod)
        shape = self._shapes.of(ready) if not isinstance(ready, Refusal) else ready
        return None if isinstance(shape, Refusal) else shape

    def _answer(self, name: str, shape: PodRequest, room: Room | None) -> NodeAnswer:
        view = self._world.view(name)
        if view is None or view.problem:
            return NodeAnswer(name, unregistered_text(view))
        report = explain(view.state, shape, self._world.registry, room)
        return NodeAnswer(name, report.outcome.text if isinstance(report.outcome, Rejection) else "", report)

    def _excess(self, pod: Pod, shape: PodRequest, nodes: tuple[NodeAnswer, ...]) -> Excess | None:
        for answer in nodes:
            outcome = answer.report.outcome if answer.report is not None else None
            view = self._world.view(answer.name)
            if view is not None and isinstance(outcome, Rejection) and _by_quota(outcome):
                return self._world.quotas.excess(pod.metadata.namespace, shape, view.state)
        return None


def _by_quota(rejection: Rejection) -> bool:
    return any(code is Reason.RESOURCE_QUOTA_NOT_FIT for code, _ in rejection.counts)
