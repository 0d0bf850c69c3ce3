"""The embedded cluster in one object: API server, and where wanted kube-scheduler and kubelets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.kinds import ALL, Kind, Target, parse_path
from hami.sim.client import ApiClient
from hami.sim.kubelet import ContainerRunner, Kubelet, KubeletConfig
from hami.sim.objects import Obj, clone
from hami.sim.scheduler import Scheduler, SchedulerConfig


class SimCluster:
    """An async context manager around the stand-ins; what was started inside ends with it.

        async with SimCluster() as cluster:
            cluster.base_url                      # http://127.0.0.1:<free port>
            cluster.kubeconfig                    # path of a kubeconfig for it
            cluster.api.rest, cluster.api.store   # object verbs and storage without HTTP
            cluster.api.faults                    # latency, 429, 500, 410, lost answers, cut watches
            cluster.api.seen                      # every request: verb, resource, name, code, user agent
            await cluster.add_node("n1", labels={"gpu": "on"})      # a kubelet; its sockets: cluster.plugin_dir("n1")
            await cluster.start_scheduler(SchedulerConfig(...))     # a kube-scheduler
            await cluster.apply(pod)                                # create any object of a served kind
            await cluster.until("/api/v1/namespaces/default/pods/p", lambda pod: pod["status"]["phase"] == "Running")

    `directory` keeps the kubeconfig and the kubelets' folders; a temporary one is made and removed otherwise.
    """

    def __init__(self, *, directory: Path | None = None, api: ApiServer | None = None) -> None:
        self._own_directory = None if directory else tempfile.TemporaryDirectory(prefix="hami-sim-")
        self.directory = directory or Path(self._own_directory.name if self._own_directory else ".")
        self.api = api or ApiServer()
        self.kubelets: dict[str, Kubelet] = {}
        self.schedulers: list[Scheduler] = []

    @property
    def base_url(self) -> str:
        return self.api.base_url

    @property
    def kubeconfig(self) -> Path:
        return self.directory / "kubeconfig"

    def plugin_dir(self, node: str) -> Path:
        """The node's device-plugins folder, with kubelet.sock and the checkpoint in it."""
        return self.directory / node

    async def __aenter__(self) -> SimCluster:
        await self.api.start()
        self.api.write_kubeconfig(self.kubeconfig)
        self.client = ApiClient(self.base_url, "hami-sim")
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            for scheduler in self.schedulers:
                await scheduler.stop()
            for kubelet in self.kubelets.values():
                await kubelet.stop()
        finally:
            await self.client.close()
            await self.api.stop()
            if self._own_directory is not None:
                self._own_directory.cleanup()

    async def add_node(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        runner: ContainerRunner | None = None,
    ) -> Kubelet:
        """Start a kubelet; it registers its node and listens for device plugins."""
        config = KubeletConfig(name, self.plugin_dir(name), labels or {}, annotations or {})
        kubelet = Kubelet(self.base_url, config, runner)
        await kubelet.start()
        self.kubelets[name] = kubelet
        return kubelet

    async def stop_node(self, name: str) -> None:
        """The machine fails: its containers die, its objects stay."""
        await self.kubelets.pop(name).stop()

    async def start_scheduler(self, config: SchedulerConfig | None = None) -> Scheduler:
        scheduler = Scheduler(self.base_url, config)
        await scheduler.start()
        self.schedulers.append(scheduler)
        return scheduler

    async def apply(self, obj: Obj) -> Obj:
        """Create the object by its apiVersion, kind and namespace (`default` where none is). Raises StatusError."""
        kind = _kind_of(obj)
        namespace = (obj.get("metadata") or {}).get("namespace", "default") if kind.namespaced else ""
        outcome = await self.api.rest.create(Target(kind, namespace), clone(obj))
        return outcome.obj

    async def until(self, path: str, predicate: Callable[[Obj], bool], timeout_s: float = 120.0) -> Obj:
        """The object at the API path once `predicate` holds for it; an object that is not there counts as `{}`.

        Raises TimeoutError with the last state seen.
        """
        target = parse_path(path)
        subscription = self.api.store.subscribe(target.kind, None)
        last: Obj = {}
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    found = self.api.store.find(target.kind, target.namespace, target.name)
                    last = found.obj if found else {}
                    if predicate(last):
                        return last
                    await subscription.get()
        except TimeoutError as error:
            raise TimeoutError(f"{path} after {timeout_s} s: {last}") from error
        finally:
            self.api.store.unsubscribe(target.kind, subscription)


def _kind_of(obj: Obj) -> Kind:
    wanted = (obj.get("apiVersion"), obj.get("kind"))
    return next(kind for kind in ALL if (kind.api_version, kind.kind) == wanted)
