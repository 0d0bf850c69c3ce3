"""Whole scheduler processes in this one: an API server stand-in, nodes without kubelets, replicas of `hami scheduler`.

Plugins are played by `serve_pods`: the writes of a device plugin after each Allocate, nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gc
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hami.apps.scheduler import Scheduler
from hami.config import scheduler as scheduler_config
from hami.core import keys
from hami.core.device_type import Registry
from hami.core.errors import TransportError
from hami.kube.client import ApiClient as KubeClient
from hami.kube.events import EventRecorder
from hami.kube.writer import KubeWriter
from hami.obs import metrics
from hami.placement.auditor import Auditor, Difference
from hami.sim.client import ApiClient, Informer
from hami.sim.cluster import SimCluster
from hami.sim.errors import StatusError
from hami.sim.scheduler import ExtenderConfig, SchedulerConfig
from hami.sim.scheduler import Scheduler as KubeScheduler
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.tools.audit import Report, audit
from tests.tools.waiting import until

NVIDIA = Nvidia(NvidiaConfig())
REGISTRY: Registry = (NVIDIA,)
SCHEDULER_NAME = "hami-scheduler"
LEASE_SPACE, LEASE = "kube-system", "hami-scheduler"
MERGE = "application/merge-patch+json"
DEADLINE_S = 120.0
"""Ends a hang and says nothing about speed."""
Obj = dict[str, Any]


def register(cards: int, slots: int = 10) -> str:
    """JSON as upstream's plugin writes it: zero values left out."""
    entries: list[Obj] = []
    for index in range(cards):
        entry: Obj = {"id": f"GPU-{index}"} | ({"index": index} if index else {})
        entry |= {"count": slots, "devmem": 16384, "devcore": 100, "type": "NVIDIA A100", "mode": "hami-core"}
        entries.append(entry | {"health": True})
    return json.dumps(entries, separators=(",", ":"))


def node(name: str, cards: int = 2, **annotations: str) -> Obj:
    room = {"cpu": "64", "memory": "256Gi", "pods": "500", "nvidia.com/gpu": str(cards * 10)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {NVIDIA.register_key: register(cards), **annotations}},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(name: str, memory_mib: int = 1000, *, count: int = 1, scheduler: str = SCHEDULER_NAME, **metadata: Any) -> Obj:
    limits = {"nvidia.com/gpu": str(count), "nvidia.com/gpumem": str(memory_mib)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **metadata},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}],
        },
    }


class Rig:
    """One cluster. Everything that was started ends with `rigged`."""

    def __init__(self, cluster: SimCluster, folder: Path, exits: contextlib.AsyncExitStack) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.client: ApiClient = cluster.client
        self._folder = folder
        self._exits = exits

    async def replica(self, *flags: str, environment: Mapping[str, str] | None = None) -> Scheduler:
        """A `hami scheduler` process, synced."""
        config = self._folder / "device-config.yaml"
        config.write_text("nvidia: {deviceSplitCount: 10}")
        fixed = [f"--kubeconfig={self.cluster.kubeconfig}", "--http_bind=127.0.0.1:0", "--metrics-bind-address="]
        fixed += [f"--device-config-file={config}", "--node-lock-retry-timeout=40s", "--kube-qps=1000"]
        settings, _ = scheduler_config.load([*fixed, "--kube-burst=1000", *flags], environment or {})
        scheduler = Scheduler(settings, REGISTRY)
        self.background(scheduler.run())
        await self.until(lambda: not scheduler.missing(), "a synced replica")
        return scheduler

    def extender(self, replica: Scheduler) -> ExtenderConfig:
        resources = frozenset(NVIDIA.managed_resources)
        return ExtenderConfig(
            url_prefix=replica.listeners[0].url, managed=resources, ignored=resources, http_timeout_s=60
        )

    async def kube_scheduler(self, replica: Scheduler) -> KubeScheduler:
        """The kube-scheduler beside a replica. Its caller stops it."""
        config = SchedulerConfig(
            scheduler_names=(SCHEDULER_NAME,),
            extenders=(self.extender(replica),),
            initial_backoff_s=0.1,
            max_backoff_s=0.5,
        )
        scheduler = KubeScheduler(self.cluster.base_url, config)
        await scheduler.start()
        return scheduler

    def background(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs until the rig ends; a failure is raised then."""
        task = asyncio.ensure_future(work)

        async def end() -> None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

        self._exits.push_async_callback(end)
        return task

    async def call(self, replica: Scheduler, verb: str, body: Obj) -> Obj:
        """An extender call, answered."""
        import aiohttp

        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{replica.listeners[0].url}/{verb}", json=body) as answer,
        ):
            found: Obj = await answer.json()
            return found

    async def get(self, path: str) -> Obj:
        return await self.client.request("GET", path)

    async def the_pod(self, name: str) -> Obj:
        return await self.get(f"/api/v1/namespaces/default/pods/{name}")

    async def the_node(self, name: str) -> Obj:
        return await self.get(f"/api/v1/nodes/{name}")

    async def pods(self) -> list[Obj]:
        found: list[Obj] = (await self.get("/api/v1/pods"))["items"]
        return found

    async def annotate(self, path: str, annotations: dict[str, str | None], **metadata: Any) -> Obj:
        body = {"metadata": {"annotations": annotations, **metadata}}
        return await self.client.request("PATCH", path, body, content_type=MERGE)

    async def hold_lease(self, holder: str, seconds: int = 3600) -> None:
        """What kube-scheduler's leader election writes when it wins or renews; nobody renews it here."""
        now = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
        spec = {"holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": now}
        path = f"/apis/coordination.k8s.io/v1/namespaces/{LEASE_SPACE}/leases"
        try:
            await self.client.request("PATCH", f"{path}/{LEASE}", {"spec": spec}, content_type=MERGE)
        except StatusError:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}, "spec": spec}
            await self.client.request("POST", path, body)

    async def audit(self) -> Report:
        """The judge of tests/tools over everything as it is now."""
        nodes = (await self.get("/api/v1/nodes"))["items"]
        return audit(nodes, await self.pods())

    async def differences(self, replica: Scheduler) -> list[Difference]:
        """What the replica's own auditor finds, in memory and against the API."""
        async with await KubeClient.load(str(self.cluster.kubeconfig)) as client:
            auditor = Auditor(replica.world, KubeWriter(client), EventRecorder(client, "test"), settle_s=10.0)
            return await auditor.check_memory() + await auditor.check_list()

    async def until(self, condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
        await until(condition, what, deadline_s)

    async def serve_pods(self) -> Informer:
        """Plays the plugin and kubelet of every node; returns a live view of all pods."""
        pods = Informer(self.client, "/api/v1/pods")
        pods.add_handler(lambda _, new: self._on_pod(new))
        self.background(pods.run())
        await pods.synced.wait()
        return pods

    def _on_pod(self, found: Obj | None) -> None:
        annotations = (found or {}).get("metadata", {}).get("annotations") or {}
        if found is None or not found["spec"].get("nodeName"):
            return
        if annotations.get(keys.BIND_PHASE) == keys.PHASE_ALLOCATING and found["status"].get("phase") == "Pending":
            self.background(self._serve(found))

    async def _serve(self, found: Obj) -> None:
        meta = found["metadata"]
        path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        rest = ";" * meta["annotations"][NVIDIA.to_allocate_key].count(";")
        done: dict[str, str | None] = {NVIDIA.to_allocate_key: rest, keys.BIND_PHASE: keys.PHASE_SUCCESS}
        await self.annotate(path, done, labels={keys.VGPU_NODE: found["spec"]["nodeName"]})
        await self.client.request("PATCH", f"{path}/status", {"status": {"phase": "Running"}}, content_type=MERGE)
        while True:
            holder = await self.the_node(found["spec"]["nodeName"])
            lock = (holder["metadata"].get("annotations") or {}).get(keys.NODE_LOCK, "")
            if not lock.endswith(f",{meta['namespace']},{meta['name']}"):
                return
            version = holder["metadata"]["resourceVersion"]
            # As the plugin: a write that failed or whose answer was lost is looked at again.
            with contextlib.suppress(StatusError, TransportError):
                await self.annotate(
                    f"/api/v1/nodes/{found['spec']['nodeName']}", {keys.NODE_LOCK: None}, resourceVersion=version
                )
                return


@asynccontextmanager
async def rigged(folder: Path) -> AsyncIterator[Rig]:
    """A cluster with no nodes."""
    async with SimCluster(directory=folder) as cluster, contextlib.AsyncExitStack() as exits:
        exits.callback(gc.unfreeze)
        yield Rig(cluster, folder, exits)


def value(metric: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(metric, labels) or 0.0
