"""The two faces of events: stored as core/v1, shown and accepted as events.k8s.io/v1 too."""

from __future__ import annotations

from typing import Final

from hami.sim.errors import FieldFault
from hami.sim.objects import Obj, dig

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


_NEW_REQUIRED: Final = {
    "eventTime": "eventTime",
    "reportingComponent": "reportingController",
    "reportingInstance": "reportingInstance",
    "action": "action",
    "reason": "reason",
}
_LIMITS: Final = {"reportingInstance": 128, "action": 128, "reason": 128, "message": 1024}


def validate(event: Obj, *, new_style: bool) -> list[FieldFault]:
    """ValidateEventCreate on the core form: events.k8s.io/v1 insists on more fields than core/v1 does."""
    about, namespace = dig(event, "involvedObject", "namespace", default=""), event["metadata"]["namespace"]
    faults = []
    if about != namespace and (about or namespace != "default"):
        faults.append(FieldFault.invalid("involvedObject.namespace", about, "does not match event.namespace"))
    if not new_style:
        return faults
    faults += [FieldFault.required(shown) for key, shown in _NEW_REQUIRED.items() if not event.get(key)]
    if event.get("type") not in ("Normal", "Warning"):
        shown = event.get("type", "")
        faults.append(FieldFault.invalid("type", shown, f"has invalid value: {shown}"))
    faults += [
        FieldFault.invalid(_RENAMED.get(key, key), "", f"can have at most {limit} characters")
        for key, limit in _LIMITS.items()
        if len(event.get(key) or "") > limit
    ]
    return faults
