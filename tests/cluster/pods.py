"""Pods for the tests: built in one line, created in bulk, and read back as a person or the kubelet sees them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from tests.cluster import results
from tests.cluster.api import Api, ApiError, Object
from tests.cluster.processes import PATIENCE_S, wait_until

VENDOR = "nvidia.com"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
BIND_PHASE = "hami.io/bind-phase"
CHOSEN_NODE = "hami.io/vgpu-node"
NODE_LOCK = "hami.io/mutex.lock"

OUT_OF_TIME = ("is the API server slow?", "the API server: ", "earlier calls took all of")
"""In what kubelet says of a pod that it fails: our plugin's words for an Allocate that is not done in its time."""
MOST_OFTEN_ANEW = 3

Limits = Mapping[str, int]


def gpu_pod(
    name: str,
    *containers: Limits,
    init: Sequence[Limits] = (),
    annotations: Mapping[str, str] | None = None,
    **spec: Any,
) -> Object:
    """A pod with one container for each limits mapping; keys are the part after `nvidia.com/`.

    `gpu_pod("p", {"gpu": 1, "gpumem": 3000}, {})` has a container with a share and one without.
    """
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [_container(f"c{index}", limits) for index, limits in enumerate(containers)],
            "initContainers": [_container(f"i{index}", limits) for index, limits in enumerate(init)],
            **spec,
        },
    }


def _container(name: str, limits: Limits) -> Object:
    resources = {"limits": {f"{VENDOR}/{key}": str(value) for key, value in limits.items()}} if limits else {}
    return {"name": name, "image": "registry.invalid/none:1", "resources": resources}


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One event as `kubectl describe` shows it."""

    type: str
    reason: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One entry of an allocation annotation."""

    uuid: str
    type: str
    memory_mib: int
    cores: int


def parse_allocation(text: str) -> list[list[Device]]:
    """Devices of each container segment, read strictly: `uuid,type,MiB,cores:` each, `;` ends a segment."""
    assert text.endswith(";"), text
    segments = []
    for segment in text[:-1].split(";"):
        assert segment == "" or segment.endswith(":"), text
        fields = [piece.split(",") for piece in segment.split(":")[:-1]]
        segments.append([Device(uuid, kind, int(memory), int(cores)) for uuid, kind, memory, cores in fields])
    return segments


class Workspace:
    """A namespace of one test: its pods, their events, and waiting for what they become."""

    _names = itertools.count(1)

    def __init__(self, api: Api, prefix: str) -> None:
        self.api = api
        self.name = f"{prefix}-{next(self._names)}".replace("_", "-")[:60]
        self.path = f"/api/v1/namespaces/{self.name}"
        self._asked: dict[str, Object] = {}
        self._made_anew: Counter[str] = Counter()

    def create(self, labels: Mapping[str, str] | None = None) -> None:
        """Make the namespace and wait until pods can be made in it."""
        metadata = {"name": self.name, "labels": dict(labels or {})}
        self.api.post("/api/v1/namespaces", {"metadata": metadata})
        account = f"{self.path}/serviceaccounts/default"
        wait_until(lambda: self.api.exists(account), PATIENCE_S, f"service account of {self.name}")

    def clear(self) -> None:
        """Delete all pods at once, and the namespace in its own time."""
        self.remove_all()
        self.api.delete(f"/api/v1/namespaces/{self.name}")

    def remove_all(self) -> None:
        """Delete all pods at once."""
        self.api.delete(f"{self.path}/pods")
        wait_until(lambda: not self.pods(), PATIENCE_S, f"pods of {self.name} gone")

    def add(self, pod: Object) -> Object:
        """Create a pod."""
        self._asked[pod["metadata"]["name"]] = pod
        created: Object = self.api.post(f"{self.path}/pods", pod)
        return created

    def add_all(self, pods: Iterable[Object]) -> None:
        """Create many pods at once over several connections."""
        wanted = list(pods)
        self._asked |= {pod["metadata"]["name"]: pod for pod in wanted}
        self.api.post_all(f"{self.path}/pods", wanted)

    def tended(self) -> list[Object]:
        """All pods, as a controller leaves them: kubelet fails a pod for good whose plugin ran out of time, on a
        machine that stood still for instance, and another takes its place."""
        pods = self.pods()
        replaced = [pod["metadata"]["name"] for pod in pods if self._is_out_of_time(pod)]
        for name in replaced:
            self._made_anew[name] += 1
            results.note("Pods that kubelet failed because the plugin ran out of time", f"{self.name}/{name}", "anew")
            self.remove(name)
            self.add_stubbornly([self._asked[name]])
        return self.pods() if replaced else pods

    @property
    def made_anew(self) -> int:
        """How many pods took the place of such failed ones."""
        return self._made_anew.total()

    def some_wait(self) -> bool:
        """Whether there is a pod that no node was chosen for yet."""
        return bool(self.api.items(f"{self.path}/pods", fieldSelector="spec.nodeName=", limit="1"))

    def _is_out_of_time(self, pod: Object) -> bool:
        name, status = pod["metadata"]["name"], pod["status"]
        out_of_time = status["phase"] == "Failed" and any(one in status.get("message", "") for one in OUT_OF_TIME)
        return out_of_time and name in self._asked and self._made_anew[name] < MOST_OFTEN_ANEW

    def add_stubbornly(self, pods: Iterable[Object], timeout_s: float = PATIENCE_S) -> None:
        """Create pods as a controller would: try each again while the webhook is away, never twice."""
        for pod in pods:
            self._asked[pod["metadata"]["name"]] = pod
            wait_until(functools.partial(self._try_add, pod), timeout_s, f"pod {pod['metadata']['name']} accepted")

    def _try_add(self, pod: Object) -> bool:
        try:
            self.add(pod)
        except ApiError as error:
            if error.status == HTTPStatus.CONFLICT:  # an earlier try did reach the server
                return True
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return False
        return True

    def pods(self) -> list[Object]:
        """All pods of the namespace."""
        return self.api.items(f"{self.path}/pods")

    def pod(self, name: str) -> Object:
        """One pod."""
        found: Object = self.api.get(f"{self.path}/pods/{name}")
        return found

    def remove(self, name: str) -> None:
        """Delete a pod at once."""
        self.api.delete(f"{self.path}/pods/{name}")
        wait_until(lambda: not self.api.exists(f"{self.path}/pods/{name}"), PATIENCE_S, f"pod {name} gone")

    def events(self, name: str) -> list[Event]:
        """Events about a pod, oldest first."""
        found = self.api.items(f"{self.path}/events", fieldSelector=f"involvedObject.name={name}")
        return [
            Event(one.get("type", ""), one["reason"], one.get("message", "")) for one in sorted(found, key=_event_time)
        ]

    def wait_event(self, name: str, reason: str, text: str = "", timeout_s: float = PATIENCE_S) -> Event:
        """The first event with this reason whose message contains `text`."""

        def found() -> Event | None:
            events = self.events(name)
            hit = [one for one in events if one.reason == reason and text in one.message]
            assert hit, f"events so far: {events}"
            return hit[0]

        event = wait_until(found, timeout_s, f"event {reason} {text!r} on {name}")
        assert event is not None
        return event

    def add_refused(self, pod: Object, reason: str, text: str = "") -> Event:
        """Create a pod that fits nowhere by what the API server says now, and return its event with this reason.

        Our scheduler hears of it a moment later. One that is bound before that is made anew.
        """
        name = pod["metadata"]["name"]

        def told() -> tuple[bool, list[Event]]:
            bound = "nodeName" in self.pod(name)["spec"]
            events = [one for one in self.events(name) if one.reason == reason and text in one.message]
            assert bound or events, self._situation(self.pod(name))
            return bound, events

        for _ in range(MOST_OFTEN_ANEW):
            self.add(pod)
            bound, events = wait_until(told, PATIENCE_S, f"pod {name} refused")
            if not bound:
                return events[0]
            self.remove(name)
        raise AssertionError(f"pod {name} is bound again and again, though it fits nowhere")

    def wait_phase(self, name: str, phase: str = "Running", timeout_s: float = PATIENCE_S) -> Object:
        """The pod, once it is in this phase."""

        def reached() -> Object | None:
            if phase == "Running":
                self.tended()
            pod = self.pod(name)
            assert pod["status"]["phase"] == phase, self._situation(pod)
            return pod

        pod = wait_until(reached, timeout_s, f"pod {name} {phase}")
        assert pod is not None
        return pod

    def wait_bound(self, name: str, timeout_s: float = PATIENCE_S) -> Object:
        """The pod, once it has a node: enough for nodes without a kubelet."""

        def bound() -> Object | None:
            pod = self.pod(name)
            assert pod["spec"].get("nodeName"), self._situation(pod)
            return pod

        pod = wait_until(bound, timeout_s, f"pod {name} bound")
        assert pod is not None
        return pod

    def wait_all_running(self, count: int, timeout_s: float = PATIENCE_S) -> list[Object]:
        """All pods, once `count` of them run."""

        def running() -> list[Object]:
            pods = self.tended()
            waiting = [pod for pod in pods if pod["status"]["phase"] != "Running"]
            names = [self._situation(pod) for pod in waiting[:3]]
            assert len(pods) - len(waiting) >= count, f"{len(waiting)} of {len(pods)} not running, first {names}"
            return pods

        return wait_until(running, timeout_s, f"{count} pods running in {self.name}", interval_s=0.5)

    def _situation(self, pod: Object) -> str:
        name = pod["metadata"]["name"]
        status = pod["status"]
        words = f"{name}: phase {status['phase']} node {pod['spec'].get('nodeName')}"
        return f"{words} reason {status.get('reason')} {status.get('message')} events {self.events(name)[-4:]}"


def annotation(thing: Object, key: str) -> str:
    """An annotation's value; empty when absent."""
    return str((thing["metadata"].get("annotations") or {}).get(key, ""))


def allocation(pod: Object) -> list[list[Device]]:
    """What the scheduler gave the pod, container by container (init containers first)."""
    return parse_allocation(annotation(pod, ALLOCATED))


def _event_time(event: Object) -> str:
    stamp = event.get("eventTime") or event.get("firstTimestamp") or event["metadata"]["creationTimestamp"]
    return str(stamp)
