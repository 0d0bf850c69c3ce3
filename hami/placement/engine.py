"""`/filter`: request, candidates, exact fit, reservation, answer (design 3, 6).

A decision is taken in steps. Between two steps other tasks may run; from the evaluator's yes to the reservation
nothing does, so that two decisions never see the same free card.
"""

from __future__ import annotations

import functools
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import Final

from hami.core import narrative
from hami.core.device_type import Refusal
from hami.core.fit import Fit
from hami.core.keys import EVENT_FILTERING_FAILED
from hami.core.model import PodRequest
from hami.core.objects import Node, Pod
from hami.core.quota import Room
from hami.core.reasons import Reason, Rejection
from hami.placement import simulation
from hami.placement.answers import EventText, FilterAnswer
from hami.placement.claims import ClaimState
from hami.placement.fitting import FittingNodes, Offered
from hami.placement.names import NodeNames
from hami.placement.node_view import unregistered_text
from hami.placement.refusals import EvaluationCache, Evaluations, News
from hami.placement.slicer import Slicer
from hami.placement.vendor_columns import BoolArray
from hami.placement.world import World

__all__ = ["Engine", "FilterAnswer", "NodeNames"]

_PROBES: Final = 8
"""Best candidates looked up in the raw names before the whole list is decoded."""
_KNOWN_IN_A_STEP: Final = 256
"""Reasons that are known already, collected in one step."""

Steps = Generator[None, None, FilterAnswer]


class Engine:
    """Decides where pods go."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shapes = world.shapes
        self._evaluations = EvaluationCache(world.registry)
        world.on_rules.append(self._evaluations.forget)
        self._news = News()

    def filter(self, pod: Pod, names: NodeNames) -> FilterAnswer:
        """Chooses one of `names` for the pod and reserves its cards, or says why none will do."""
        steps = self._steps(pod, names)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return _answer(done)

    async def filter_sliced(self, pod: Pod, names: NodeNames) -> FilterAnswer:
        """The same, giving way to other tasks where many nodes have to be evaluated."""
        slicer = Slicer(self._world.clock)
        steps = self._steps(pod, names)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return _answer(done)
            await slicer.give_way()

    async def simulate(self, pod: Pod, nodes: Iterable[Node], *, all_feasible: bool = False) -> FilterAnswer:
        """Answers for full Node objects as if nothing ran on them; changes nothing (spec/scheduler 4.9)."""
        room = self._world.quotas.room(pod.metadata.namespace, self._world.ledger.get(pod.metadata.uid))
        shape = self._shapes.of(pod)
        slicer = Slicer(self._world.clock)
        return await simulation.simulate(
            self._world.registry, shape, nodes, slicer, all_feasible=all_feasible, room=room
        )

    def _steps(self, pod: Pod, names: NodeNames) -> Steps:
        shape = self._shapes.of(pod)
        if isinstance(shape, Refusal):
            return self._bad_input(pod, names, shape)
        if not shape.asks_for_devices:
            self._world.remember_plain(pod.metadata.uid)
            return FilterAnswer(passthrough=True)
        if self._world.is_gone(pod.metadata.uid):
            return FilterAnswer(error=f"pod {pod.key} is gone")
        standing = self._standing(pod, names)
        if standing is not None:
            return standing
        self._world.in_flight.call_off(pod.metadata.uid, "the pod was filtered again")
        self._world.ledger.end_reservation(pod.metadata.uid)
        if over := _over(pod):
            return FilterAnswer(error=f"pod {pod.key} {over}")
        self._world.settle_now()
        columns = self._world.columns
        mask = columns.candidates(shape)
        offer = Offered(columns, names)
        fitting = FittingNodes.of(columns, offer, mask, spread=_spreads(shape))
        namespace = pod.metadata.namespace
        evaluations = self._evaluations_of(shape, self._world.quotas.room(namespace))
        back = self._world.set_back()
        names_in_order = self._candidates(mask, offer, spread=_spreads(shape))
        for name in names_in_order if not back else _last(names_in_order, back):
            view = self._world.view(name)
            if view is None or view.problem or evaluations.known(name, view):
                continue
            found = evaluations.of(name, view)
            if isinstance(found, Fit):
                return self._reserve(pod, names, name, found, fitting)
            yield
            evaluations = self._settled(evaluations, shape, namespace)
        return (yield from self._no_fit(pod, names, shape, evaluations, fitting))

    def _settled(self, evaluations: Evaluations, shape: PodRequest, namespace: str) -> Evaluations:
        """After other tasks ran: the nodes as they are now, and what the namespace's quota has room for now."""
        self._world.settle_now()
        room = self._world.quotas.room(namespace)
        return evaluations if room == evaluations.room else self._evaluations_of(shape, room)

    def _evaluations_of(self, shape: PodRequest, room: Room | None) -> Evaluations:
        return self._evaluations.of(shape, room, len(self._world.inventory))

    def _standing(self, pod: Pod, names: NodeNames) -> FilterAnswer | None:
        """The answer for a pod that is bound or being bound: its node, and nothing changes (reports B26, B28)."""
        uid = pod.metadata.uid
        node = pod.spec.node_name or self._world.in_flight.writing_node(uid)
        claim = self._world.ledger.get(uid)
        if not node and claim is not None and (claim.pinned or claim.state is ClaimState.BOUND):
            node = claim.node
        if not node:
            return None
        if names.contains(node):
            return FilterAnswer(node=node)
        return FilterAnswer(error=f"pod {pod.key} is already bound to node {node}, which was not offered")

    def _candidates(self, mask: BoolArray, offer: Offered, *, spread: bool) -> Iterator[str]:
        """Offered candidates in rank order, once each as long as nodes neither come nor go. `mask` is used up."""
        columns, names = self._world.columns, offer.names
        if 4 * names.count >= len(columns):
            for _ in range(_PROBES):
                place = columns.best(mask, spread=spread)
                if place is None:
                    return
                mask[place] = False
                name = columns.name(place)
                if name and names.contains(name):
                    yield name
        version = columns.version
        offered = offer.mask[: len(mask)] & mask
        for _ in range(_PROBES):
            place = columns.best(offered, spread=spread)
            if place is None:
                return
            offered[place] = False
            yield columns.name(place)
            if version != columns.version:
                break
        ranked = [columns.name(place) for place in columns.ranked(offered, spread=spread)]
        yield from ranked if version == columns.version else names.list()

    def _reserve(self, pod: Pod, names: NodeNames, node: str, found: Fit, fitting: FittingNodes) -> FilterAnswer:
        standing = self._standing(pod, names)
        if standing is not None:
            return standing
        clock = self._world.clock
        view = self._world.view(node)
        devices = view.state.devices if view is not None else ()
        self._world.ledger.reserve(pod, node, found, clock.monotonic_s(), clock.unix_s(), devices)
        self._news.forget(pod.metadata.uid)
        self._world.waking.placed(pod.metadata.uid)
        narrate = functools.partial(fitting.event, node)
        return FilterAnswer(node=node, narrate=narrate, upkeep=self._world.settle_now)

    def _no_fit(
        self, pod: Pod, names: NodeNames, shape: PodRequest, evaluations: Evaluations, fitting: FittingNodes
    ) -> Steps:
        rejections: dict[str, Rejection | str] = {}
        texts: dict[str, str] = {}
        for number, name in enumerate(names.list(), start=1):
            evaluated = evaluations.evaluated
            view = self._world.view(name)
            if view is None or view.problem:
                rejections[name] = texts[name] = unregistered_text(view)
            else:
                found = evaluations.of(name, view)
                if isinstance(found, Fit):
                    # Room came free while reasons were collected.
                    return self._reserve(pod, names, name, found, fitting)
                rejections[name] = found
                texts[name] = found.text
            if evaluations.evaluated > evaluated or not number % _KNOWN_IN_A_STEP:
                yield
                evaluations = self._settled(evaluations, shape, pod.metadata.namespace)
        return self._refuse(pod, shape, rejections, texts)

    def _refuse(
        self,
        pod: Pod,
        shape: PodRequest,
        rejections: Mapping[str, Rejection | str],
        texts: Mapping[str, str],
    ) -> FilterAnswer:
        self._world.waking.refused(pod.metadata.uid)
        if not self._news.is_news(pod.metadata.uid, texts, self._world.clock.monotonic_s()):
            return FilterAnswer(failed=texts, unresolvable=texts)
        return FilterAnswer(
            failed=texts, unresolvable=texts, narrate=functools.partial(self._failure, pod, shape, rejections)
        )

    def _failure(self, pod: Pod, shape: PodRequest, rejections: Mapping[str, Rejection | str]) -> tuple[EventText, ...]:
        texts = narrative.filtering_failed(rejections, len(rejections))
        for name, found in rejections.items():
            if isinstance(found, Rejection) and any(code == Reason.RESOURCE_QUOTA_NOT_FIT for code, _ in found.counts):
                view = self._world.view(name)
                excess = self._world.quotas.excess(pod.metadata.namespace, shape, view.state) if view else None
                texts[:0] = [excess.text] if excess is not None else []
                break
        return tuple((True, EVENT_FILTERING_FAILED, text) for text in texts)

    def _bad_input(self, pod: Pod, names: NodeNames, refusal: Refusal) -> FilterAnswer:
        """Input that admission would have refused: unschedulable, not an error that is retried for ever."""
        texts = dict.fromkeys(names.list(), refusal.message)
        if not self._news.is_news(pod.metadata.uid, texts, self._world.clock.monotonic_s()):
            return FilterAnswer(failed=texts, unresolvable=texts)
        event = (True, EVENT_FILTERING_FAILED, refusal.message)
        return FilterAnswer(failed=texts, unresolvable=texts, narrate=lambda: (event,))


def _over(pod: Pod) -> str:
    """Why a pod that is not bound never will be, whatever is decided; empty if it may be."""
    if pod.finished:
        return f"has ended ({pod.status.phase})"
    return "is being deleted" if pod.metadata.deletion_timestamp is not None else ""


def _last(names: Iterable[str], back: set[str]) -> Iterator[str]:
    """The names with those in `back` at the end."""
    late = []
    for name in names:
        if name in back:
            late.append(name)
        else:
            yield name
    yield from late


def _answer(done: StopIteration) -> FilterAnswer:
    answer = done.value
    assert isinstance(answer, FilterAnswer)
    return answer


def _spreads(shape: PodRequest) -> bool:
    return shape.policies.node == "spread"
