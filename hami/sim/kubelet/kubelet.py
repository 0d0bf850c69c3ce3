"""One node: its Node object, its device manager and its pods, against the API server.

Pods are admitted one at a time in the order in which they arrive, as kubelet's sync loop does; then each runs on its
own.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hami.sim.client import ApiClient, Informer
from hami.sim.kubelet.allocation import Allocation
from hami.sim.kubelet.devices import DeviceError, DeviceManager
from hami.sim.kubelet.node_object import new_node
from hami.sim.kubelet.node_reporter import NodeReporter
from hami.sim.kubelet.plugins import PluginCallError
from hami.sim.kubelet.pod_api import PodApi
from hami.sim.kubelet.pod_status import rejected
from hami.sim.kubelet.pod_worker import PodWorker
from hami.sim.kubelet.runner import ContainerRunner, SimulatedRunner
from hami.sim.objects import Obj, dig
from hami.sim.pod_resources import amounts, pod_requests
from hami.sim.tasks import TaskSet

_TERMINAL: Final = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class KubeletConfig:
    """One node. `directory` is the kubelet's device-plugins folder (keep it short: unix sockets end at 107 bytes).

    `resources`: what the machine itself has. `heartbeat_s`: how often lease and status are refreshed; device changes
    are written at once, where the real kubelet waits up to 10 s.
    """

    name: str
    directory: Path
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(
        default_factory=lambda: {"cpu": "64", "memory": "256Gi", "pods": "110", "ephemeral-storage": "500Gi"}
    )
    heartbeat_s: float = 10.0


class Kubelet:
    """`start`, then `stop`. `allocations` records every Allocate answer of this kubelet's life, in order."""

    def __init__(
        self,
        base_url: str,
        config: KubeletConfig,
        runner: ContainerRunner | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.config = config
        self._tls = tls
        self.allocations: list[Allocation] = []
        self.devices = DeviceManager(config.directory, self._active_uids, lambda: self._node.due())
        node = new_node(config.name, config.labels, config.annotations)
        self._node = NodeReporter(node, config.resources, self.devices.capacity, config.heartbeat_s)
        self._base_url = base_url
        self._runner = runner or SimulatedRunner()
        self._inbox: asyncio.Queue[str] = asyncio.Queue()
        self._admitted: dict[str, Obj] = {}
        self._workers: dict[str, PodWorker] = {}
        self._terminating: set[str] = set()
        self._ended: set[str] = set()
        self._tasks = TaskSet()

    async def start(self) -> None:
        """Register the node, listen for device plugins, take pods. Raises OSError, StatusError, TransportError."""
        self._client = ApiClient(self._base_url, f"kubelet/hami-sim ({self.config.name})", self._tls)
        self._api = PodApi(self._client, self.config.name)
        await self.devices.start()
        await self._node.register(self._client)
        self._pods = Informer(self._client, "/api/v1/pods", f"spec.nodeName={self.config.name}")
        self._pods.add_handler(self._on_pod)
        for work in (self._pods.run(), self._sync_loop()):
            self._tasks.spawn(work)
        self._tasks.spawn(self._node.keep_status(self._client))
        self._tasks.spawn(self._node.keep_lease(self._client))
        await self._pods.synced.wait()

    async def stop(self) -> None:
        """The machine goes away: containers die unreported, the Node object stays. Raises what has crashed."""
        try:
            await self._tasks.stop()
        finally:
            await self.devices.stop()
            await self._client.close()

    async def restart_device_manager(self) -> None:
        """What plugins see of a kubelet restart: their sockets are removed and kubelet.sock is made anew."""
        await self.devices.stop()
        await self.devices.start()
        self._node.due()

    def _active_uids(self) -> set[str]:
        """Pods that hold their devices: on this node and not ended, also those that a restart has yet to admit."""
        here = {
            pod["metadata"]["uid"]
            for pod in self._pods.objects.values()
            if dig(pod, "status", "phase") not in _TERMINAL
        }
        return (here - self._ended) | set(self._admitted)

    def _on_pod(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        assert pod is not None
        self._inbox.put_nowait(pod["metadata"]["uid"])

    async def _sync_loop(self) -> None:
        while True:
            uid = await self._inbox.get()
            pod = next((one for one in self._pods.objects.values() if one["metadata"]["uid"] == uid), None)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                self._terminate(uid, pod)
                if pod is None:
                    self._ended.discard(uid)
            elif uid not in self._admitted and uid not in self._ended and dig(pod, "status", "phase") not in _TERMINAL:
                await self._admit(pod)

    async def _admit(self, pod: Obj) -> None:
        """Give devices and check room; then start the pod, or refuse it with kubelet's words."""
        uid, before = pod["metadata"]["uid"], self.devices.allocations()
        missing = self._missing(pod)
        self._admitted[uid] = pod
        try:
            await self.devices.allocate_pod(pod)
        except (DeviceError, PluginCallError) as error:
            missing = ("UnexpectedAdmissionError", f"Allocate failed due to {error}, which is unexpected")
        self.allocations += [one for one in self.devices.allocations(uid) if one not in before]
        if missing:
            del self._admitted[uid]
            self._ended.add(uid)
            reason, message = missing
            await self._api.event(pod, "Warning", reason, message)
            await self._api.patch_status(pod, rejected(reason, message))
            return
        worker = PodWorker(pod, self._runner, self.devices, self._api)
        self._workers[uid] = worker
        self._tasks.spawn(self._carry(uid, worker))

    async def _carry(self, uid: str, worker: PodWorker) -> None:
        await worker.run()
        self._workers.pop(uid, None)
        self._admitted.pop(uid, None)
        self._ended.add(uid)
        if uid in self._terminating:
            self._terminating.discard(uid)
            await self._api.delete(worker.pod)

    def _terminate(self, uid: str, pod: Obj | None) -> None:
        """End the containers within the grace period, then delete the object; a pod without worker goes at once."""
        worker = self._workers.get(uid)
        if worker is None:
            if pod is not None:
                self._tasks.spawn(self._api.delete(pod))
        elif uid not in self._terminating or pod is None:
            self._terminating.add(uid)
            grace_s = int(dig(pod, "metadata", "deletionGracePeriodSeconds", default=0))
            self._tasks.spawn(worker.stop(grace_s))

    def _missing(self, pod: Obj) -> tuple[str, str] | None:
        """Reason and message where cpu, memory or pods do not suffice; device plugins judge their own."""
        have, used = amounts(self.config.resources), Counter({"pods": len(self._admitted)})
        for other in self._admitted.values():
            used.update(pod_requests(other))
        for name, amount in {**pod_requests(pod), "pods": 1}.items():
            if name in have and amount > have[name] - used[name]:
                text = f"requested: {amount}, used: {used[name]}, capacity: {have[name]}"
                return f"OutOf{name}", f"Node didn't have enough resource: {name}, {text}"
        return None
