"""Pod status as kubelet writes it: conditions, container statuses, phases."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Final

from hami.sim.objects import Obj, timestamp

_ADDRESSES: Final = itertools.count(1)


def _next_ip() -> str:
    number = next(_ADDRESSES)
    return f"10.88.{number // 250 % 250}.{number % 250 + 1}"


@dataclass(slots=True)
class PodProgress:
    """How far the containers of one pod are; `states` by container name."""

    pod: Obj
    states: dict[str, Obj] = field(default_factory=dict)
    started_at: str = field(default_factory=timestamp)
    pod_ip: str = field(default_factory=_next_ip)

    def started(self, name: str) -> None:
        self.states[name] = {"running": {"startedAt": timestamp()}}

    def ended(self, name: str, exit_code: int) -> None:
        began = self.states.get(name, {}).get("running", {}).get("startedAt", timestamp())
        reason = "Completed" if exit_code == 0 else "Error"
        self.states[name] = {
            "terminated": {"exitCode": exit_code, "reason": reason, "startedAt": began, "finishedAt": timestamp()}
        }

    def _container(self, container: Obj, *, init: bool) -> Obj:
        name = container["name"]
        waiting = {"waiting": {"reason": "PodInitializing" if self.pod["spec"].get("initContainers") else "Pending"}}
        state = self.states.get(name, waiting)
        done = state.get("terminated", {}).get("exitCode") == 0
        status: Obj = {
            "name": name,
            "image": container.get("image", ""),
            "imageID": "",
            "state": state,
            "lastState": {},
            "ready": "running" in state or (init and done),
            "started": "running" in state,
            "restartCount": 0,
        }
        if "waiting" not in state:
            status["containerID"] = f"sim://{self.pod['metadata']['uid']}/{name}"
        return status

    def status(self, phase: str) -> Obj:
        """The whole status for a PATCH; conditions merge by type, so PodScheduled stays the scheduler's."""
        spec = self.pod["spec"]
        init = [self._container(one, init=True) for one in spec.get("initContainers") or []]
        apps = [self._container(one, init=False) for one in spec["containers"]]
        initialized, ready = all(one["ready"] for one in init), all(one["ready"] for one in apps)
        flags = {
            "PodReadyToStartContainers": bool(self.states),
            "Initialized": initialized,
            "Ready": ready,
            "ContainersReady": ready,
        }
        why = {} if phase not in ("Succeeded", "Failed") else {"reason": "PodCompleted"}
        now = timestamp()
        status: Obj = {
            "phase": phase,
            "hostIP": "127.0.0.1",
            "hostIPs": [{"ip": "127.0.0.1"}],
            "podIP": self.pod_ip,
            "podIPs": [{"ip": self.pod_ip}],
            "startTime": self.started_at,
            "conditions": [
                {"type": kind, "status": str(value), "lastTransitionTime": now, **({} if value else why)}
                for kind, value in flags.items()
            ],
            "containerStatuses": apps,
        }
        if init:
            status["initContainerStatuses"] = init
        return status


def rejected(reason: str, message: str) -> Obj:
    """Status of a pod that admission refused (Kubelet.rejectPod)."""
    return {"phase": "Failed", "reason": reason, "message": f"Pod was rejected: {message}", "startTime": timestamp()}
