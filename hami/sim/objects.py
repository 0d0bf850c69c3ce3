"""Helpers for Kubernetes objects as plain dictionaries: copies, paths, times, keys.

The stand-ins keep whole objects, unlike `hami.core.objects`, because they own the world that our views look at.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

Obj = dict[str, Any]
"""A Kubernetes object (or a part of one) as decoded from JSON."""

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
MICRO_TIME_FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"


def clone(value: Any) -> Any:
    """Deep copy of JSON data; ten times cheaper than copy.deepcopy."""
    if isinstance(value, dict):
        return {key: clone(item) for key, item in value.items()}
    if isinstance(value, list):
        return [clone(item) for item in value]
    return value


def dig(obj: Any, *path: str, default: Any = None) -> Any:
    """The value at `path`, or `default` where a step is missing or null."""
    for step in path:
        if not isinstance(obj, dict):
            return default
        obj = obj.get(step)
    return default if obj is None else obj


def now() -> dt.datetime:
    """Wall clock in UTC: the embedded cluster lives in real time, like the real one."""
    return dt.datetime.now(dt.UTC)


def timestamp(moment: dt.datetime | None = None) -> str:
    """RFC 3339 with seconds, as metav1.Time is written."""
    return (moment or now()).strftime(TIME_FORMAT)


def micro_timestamp(moment: dt.datetime | None = None) -> str:
    """RFC 3339 with microseconds, as metav1.MicroTime is written."""
    return (moment or now()).strftime(MICRO_TIME_FORMAT)


def parse_time(text: str) -> dt.datetime:
    """Read either form back. Raises ValueError on anything else."""
    return dt.datetime.fromisoformat(text)


def object_key(obj: Obj) -> str:
    """`namespace/name`, or the name alone for cluster-scoped objects."""
    namespace = dig(obj, "metadata", "namespace", default="")
    name = dig(obj, "metadata", "name", default="")
    return f"{namespace}/{name}" if namespace else str(name)


def set_condition(obj: Obj, condition: Obj) -> bool:
    """Put `condition` into status.conditions by its type; lastTransitionTime moves only when the status changes.

    Returns whether anything changed, like podutil.UpdatePodCondition.
    """
    conditions: list[Obj] = obj.setdefault("status", {}).setdefault("conditions", [])
    fresh = {**condition, "lastTransitionTime": timestamp()}
    for index, old in enumerate(conditions):
        if old.get("type") != condition["type"]:
            continue
        if old.get("status") == condition.get("status"):
            fresh["lastTransitionTime"] = old.get("lastTransitionTime")
        if fresh == old:
            return False
        conditions[index] = fresh
        return True
    conditions.append(fresh)
    return True
