"""The two faces of events: stored as core/v1, shown and accepted as events.k8s.io/v1 too."""

from __future__ import annotations

from typing import Final

from hami.sim.objects import Obj

_RENAMED: Final = {
    "message": "note",
    "involvedObject": "regarding",
    "reportingComponent": "reportingController",
    "source": "deprecatedSource",
    "count": "deprecatedCount",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
}
_BACK: Final = {new: old for old, new in _RENAMED.items()}


def to_new(event: Obj) -> Obj:
    """core/v1 → events.k8s.io/v1."""
    return {_RENAMED.get(key, key): value for key, value in event.items()}


def to_core(event: Obj) -> Obj:
    """events.k8s.io/v1 → core/v1."""
    return {_BACK.get(key, key): value for key, value in event.items()}
