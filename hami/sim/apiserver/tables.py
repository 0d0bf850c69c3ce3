"""Tables for `kubectl get`: the columns of the real server's printers for pods, nodes and events; name and age else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hami.sim.apiserver.kinds import Kind
from hami.sim.objects import Obj, dig, now, parse_time

Column = tuple[str, int]
"""Name and priority; priority 1 shows with -o wide only."""


def _age(text: Any) -> str:
    """duration.HumanDuration of the time since."""
    if not text:
        return "<unknown>"
    seconds = max(int((now() - parse_time(str(text))).total_seconds()), 0)
    if seconds < 120:
        return f"{seconds}s"
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    return f"{hours}h" if hours < 48 else f"{days}d"


def _pod_reason(pod: Obj) -> str:
    if "deletionTimestamp" in pod["metadata"]:
        return "Terminating"
    reason = str(dig(pod, "status", "reason", default="") or dig(pod, "status", "phase", default="Unknown"))
    for status in dig(pod, "status", "containerStatuses", default=[]):
        state = status.get("state") or {}
        reason = dig(state, "waiting", "reason") or dig(state, "terminated", "reason") or reason
    return reason


def _pod(pod: Obj) -> list[Any]:
    statuses = dig(pod, "status", "containerStatuses", default=[])
    ready = sum(1 for status in statuses if status.get("ready"))
    restarts = sum(int(status.get("restartCount") or 0) for status in statuses)
    return [
        pod["metadata"]["name"],
        f"{ready}/{len(pod['spec'].get('containers') or [])}",
        _pod_reason(pod),
        str(restarts),
        _age(pod["metadata"].get("creationTimestamp")),
        dig(pod, "status", "podIP", default="<none>"),
        dig(pod, "spec", "nodeName", default="<none>"),
        dig(pod, "status", "nominatedNodeName", default="<none>"),
    ]


def _node(node: Obj) -> list[Any]:
    conditions = {condition["type"]: condition["status"] for condition in dig(node, "status", "conditions", default=[])}
    state = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    if dig(node, "spec", "unschedulable"):
        state += ",SchedulingDisabled"
    prefix = "node-role.kubernetes.io/"
    roles = [label[len(prefix) :] for label in dig(node, "metadata", "labels", default={}) if label.startswith(prefix)]
    return [
        node["metadata"]["name"],
        state,
        ",".join(sorted(roles)) or "<none>",
        _age(node["metadata"].get("creationTimestamp")),
        dig(node, "status", "nodeInfo", "kubeletVersion", default=""),
    ]


def _event(event: Obj) -> list[Any]:
    about = event.get("involvedObject") or {}
    seen = event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp")
    return [
        _age(seen),
        event.get("type", ""),
        event.get("reason", ""),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        str(event.get("message", "")).strip(),
    ]


def _other(obj: Obj) -> list[Any]:
    return [obj["metadata"]["name"], _age(obj["metadata"].get("creationTimestamp"))]


_PRINTERS: Final[dict[str, tuple[tuple[Column, ...], Callable[[Obj], list[Any]]]]] = {
    "pods": (
        (
            ("Name", 0),
            ("Ready", 0),
            ("Status", 0),
            ("Restarts", 0),
            ("Age", 0),
            ("IP", 1),
            ("Node", 1),
            ("Nominated Node", 1),
        ),
        _pod,
    ),
    "nodes": ((("Name", 0), ("Status", 0), ("Roles", 0), ("Age", 0), ("Version", 0)), _node),
    "events": ((("Last Seen", 0), ("Type", 0), ("Reason", 0), ("Object", 0), ("Message", 0)), _event),
}
_OTHER: Final[tuple[tuple[Column, ...], Callable[[Obj], list[Any]]]] = ((("Name", 0), ("Age", 0)), _other)


def table(kind: Kind, items: list[Obj], meta: Obj) -> Obj:
    """A meta.k8s.io/v1 Table of the objects."""
    columns, cells = _PRINTERS.get(kind.plural, _OTHER)
    definitions = [
        {"name": name, "type": "string", "format": "name" if name == "Name" else "", "description": "", "priority": low}
        for name, low in columns
    ]
    rows = [
        {
            "cells": cells(item),
            "object": {
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": item["metadata"],
            },
        }
        for item in items
    ]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": definitions,
        "rows": rows,
    }
