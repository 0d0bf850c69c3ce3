"""What a person would look at after a failed test: pods and nodes as the API server has them, and what our logs say.

It is read from a CI log whose cluster is gone: what matters most comes first, and lines are cut, not left out.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.api import Api, Object
from tests.cluster.components import Cluster
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import BIND_PHASE, NODE_LOCK, annotation
from tests.cluster.processes import NotYetError, Process

MOST_PODS = 30
WARNINGS = 25
LAST_LINES = 60
NEIGHBOURS_LINES = 12
WIDTH = 400
QUIET = ("debug", "info")


def of_cluster(cluster: Cluster) -> list[tuple[str, str]]:
    """Headings and texts."""
    ours = {
        path.name: path.read_text(errors="replace").splitlines() for path in sorted(cluster.plane.logs.glob("hami*"))
    }
    plugins = [node.plugin for node in cluster.nodes.values()]
    neighbours = [*plugins, *{node.kubelet.name: node.kubelet for node in cluster.nodes.values()}.values()]
    return [
        ("pods that do not run", _asked(lambda: pods_waiting(cluster.api))),
        ("nodes", _asked(lambda: nodes_now(cluster.api))),
        *of_plane(cluster.plane),
        *((f"warnings in {name}", cut(warnings(lines)[-WARNINGS:])) for name, lines in ours.items()),
        *((f"{name}, all logs in {cluster.plane.logs}", cut(lines[-LAST_LINES:])) for name, lines in ours.items()),
        *ended(neighbours),
        *((each.name, cut(warnings(each.said().splitlines())[-NEIGHBOURS_LINES:])) for each in neighbours),
    ]


def of_plane(plane: ControlPlane) -> list[tuple[str, str]]:
    """Who of the control plane is dead, with its last words."""
    return ended(process for process in plane.processes() if process.starts)


def ended(processes: Iterable[Process]) -> list[tuple[str, str]]:
    """Those that do not run, with their last words."""
    return [(f"{each.name} does not run", each.tail(NEIGHBOURS_LINES)) for each in processes if not each.alive]


def of_files(folder: Path) -> list[tuple[str, str]]:
    """Ends of the logs in a test's own folder."""
    return [
        (path.name, cut(path.read_text(errors="replace").splitlines()[-LAST_LINES:]))
        for path in sorted(folder.glob("*.log"))
    ]


def pods_waiting(api: Api) -> str:
    """A line for each pod that neither runs nor has ended well, oldest first, with the last word about it."""
    said: dict[str, str] = {}
    for event in api.items("/api/v1/events"):
        about = event["involvedObject"]
        said[f"{about.get('namespace')}/{about.get('name')}"] = f"{event['reason']}: {event.get('message')}"
    waiting = [pod for pod in api.items("/api/v1/pods") if pod["status"].get("phase") not in ("Running", "Succeeded")]
    lines = [_pod_line(pod, said) for pod in waiting[:MOST_PODS]]
    return cut([*lines, f"{len(waiting)} pods"])


def _pod_line(pod: Object, said: dict[str, str]) -> str:
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    state = f"{pod['status'].get('phase')} on {pod['spec'].get('nodeName', 'no node')}"
    deleted = " being deleted" if "deletionTimestamp" in pod["metadata"] else ""
    return f"{name}: {state}{deleted}, bind phase {annotation(pod, BIND_PHASE)!r}, {said.get(name, 'no event')}"


def nodes_now(api: Api) -> str:
    """A line for each node: who holds its token, its taints, and the shares that it offers."""
    return cut(
        f"{node['metadata']['name']}: token {annotation(node, NODE_LOCK)!r}, taints {node['spec'].get('taints', [])}, "
        f"shares {node['status'].get('allocatable', {}).get('nvidia.com/gpu', '0')}, "
        f"handshake {annotation(node, 'hami.io/node-handshake')!r}"
        for node in api.items("/api/v1/nodes")
    )


def warnings(lines: Iterable[str]) -> list[str]:
    """Log lines that are no mere information; text that is no log line of ours is a traceback."""
    return [line for line in lines if not line.startswith("--- start") and not _is_quiet(line)]


def _is_quiet(line: str) -> bool:
    try:
        return json.loads(line).get("level") in QUIET
    except (ValueError, AttributeError):
        return False


def cut(lines: Iterable[str]) -> str:
    """One text of lines that are not too long."""
    return "\n".join(line[:WIDTH] for line in lines)


def _asked(question: Callable[[], str]) -> str:
    """The answer, or why there is none: the API server may be what failed."""
    try:
        return question()
    except (NotYetError, OSError, http.client.HTTPException) as error:
        return f"not known: {error}"
