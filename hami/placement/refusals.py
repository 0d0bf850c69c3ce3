"""Why nodes refused: cached per request shape and node revision, and told to people only when it is news."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami.core.model import PodRequest
from hami.core.reasons import Rejection

_MOST_SHAPES: Final = 256
_MOST_PODS: Final = 20_000
REPEAT_S: Final = 300.0
"""An unchanged refusal is told again after this time (design 4, promise 8)."""


class RejectionCache:
    """Rejections by (request shape, node) as long as the node's revision stays the same."""

    def __init__(self) -> None:
        self._shapes: dict[PodRequest, dict[str, tuple[int, Rejection]]] = {}

    def of(self, request: PodRequest) -> dict[str, tuple[int, Rejection]]:
        """Node -> revision and rejection, for this shape; the caller adds to it."""
        nodes = self._shapes.get(request)
        if nodes is None:
            if len(self._shapes) >= _MOST_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            nodes = self._shapes[request] = {}
        return nodes


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
