"""Why nodes refused: cached per request shape and node revision, and told to people only when it is news."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Final, TypeVar

from hami.core.device_type import Registry
from hami.core.fit import Fit, evaluate
from hami.core.model import PodRequest
from hami.core.quota import Room
from hami.core.reasons import Rejection
from hami.placement.node_view import NodeView

_Key = TypeVar("_Key", bound=Hashable)

_MOST_SHAPES: Final = 64
_MOST_PODS: Final = 20_000
_SPARE_NODES: Final = 64
"""Rejections of nodes that are gone, kept at least before all are forgotten."""
REPEAT_S: Final = 300.0
"""An unchanged refusal is told again after this time (design 4, promise 8)."""


class Evaluations:
    """Outcomes of one request shape per node; a rejection is kept as long as the node's revision stays the same.

    Within one decision (`begin`) nodes that are alike share a rejection, unless the request names card ids. They hold
    for one `room` of the namespace's quota.
    """

    def __init__(self, request: PodRequest, registry: Registry, room: Room | None = None) -> None:
        self._request = request
        self._registry = registry
        self.room = room
        self._by_id = any(selectors.use_ids or selectors.nouse_ids for _, selectors in request.selectors)
        self._known: dict[str, tuple[int, Rejection]] = {}
        self._alike: dict[Hashable, Rejection] = {}
        self.evaluated = 0
        """How often the evaluator had to work."""

    def begin(self, nodes: int) -> None:
        """`nodes`: how many there are now. Names of nodes that come and go must not pile up."""
        self._alike.clear()
        if len(self._known) > _SPARE_NODES + 2 * nodes:
            self._known.clear()

    def known(self, name: str, view: NodeView) -> Rejection | None:
        """A rejection that still holds, without evaluating anything."""
        known = self._known.get(name)
        return known[1] if known is not None and known[0] == view.revision else None

    def of(self, name: str, view: NodeView) -> Fit | Rejection:
        rejection = self.known(name, view)
        if rejection is not None:
            return rejection
        likeness = None if self._by_id else view.likeness()
        found: Fit | Rejection | None = self._alike.get(likeness) if likeness is not None else None
        if found is None:
            self.evaluated += 1
            found = evaluate(view.state, self._request, self._registry, self.room)
        if isinstance(found, Rejection):
            self._known[name] = (view.revision, found)
            if likeness is not None:
                self._alike[likeness] = found
        return found


class EvaluationCache:
    """Evaluations by request shape; the oldest shape goes first.

    Pods of limited namespaces have entries of their own, by what is left of the quota: that changes with every pod,
    and must not push out what all others share.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._shapes: dict[PodRequest, Evaluations] = {}
        self._limited: dict[tuple[PodRequest, Room], Evaluations] = {}

    def forget(self) -> None:
        """The rules have changed."""
        self._shapes.clear()
        self._limited.clear()

    def of(self, request: PodRequest, room: Room | None, nodes: int) -> Evaluations:
        found = self._shapes.get(request) if room is None else self._limited.get((request, room))
        if found is None:
            found = Evaluations(request, self._registry, room)
            if room is None:
                _put(self._shapes, request, found)
            else:
                _put(self._limited, (request, room), found)
        found.begin(nodes)
        return found


def _put(known: dict[_Key, Evaluations], key: _Key, found: Evaluations) -> None:
    if len(known) >= _MOST_SHAPES:
        del known[next(iter(known))]
    known[key] = found


class News:
    """Remembers what each pod was told last."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[int, float]] = {}

    def is_news(self, uid: str, reasons: Mapping[str, str], now_s: float) -> bool:
        """Whether the pod's owner should be told now; remembers it if so."""
        fingerprint = hash(frozenset(reasons.items()))
        told = self._told.get(uid)
        if told is not None and told[0] == fingerprint and now_s - told[1] < REPEAT_S:
            return False
        if len(self._told) >= _MOST_PODS:
            del self._told[next(iter(self._told))]
        self._told.pop(uid, None)
        self._told[uid] = (fingerprint, now_s)
        return True

    def forget(self, uid: str) -> None:
        self._told.pop(uid, None)
