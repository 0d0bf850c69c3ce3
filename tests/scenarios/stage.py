"""One scenario in one world: its namespace and nodes, and what happens there."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tests.cluster.controlplane import SCHEDULER_NAME
from tests.scenarios.api import NOT_FOUND, Api, ApiError, Watcher
from tests.scenarios.model import PENDING, RUNNING, NewPod, Present, Scenario
from tests.scenarios.objects import (
    BIND_PHASE,
    LABEL,
    NODE_LOCK,
    REGISTER,
    TO_ALLOCATE,
    Names,
    ended_init_containers,
    marker_node,
    marker_pod,
    new_pod,
    node_object,
    present_pod,
    probe_pod,
    register,
    resource_quota,
)
from tests.scenarios.worlds import REAL, World, until

Object = dict[str, Any]
QUOTA_LIMIT = "hami_resource_quota_limit"
NOT_READY = "node.kubernetes.io/not-ready"
DEFAULT_SCHEDULER = "default-scheduler"


class Stage:
    """Makes the scenario's objects and plays what has no process: plugin and kubelet of nodes that only the API has."""

    def __init__(self, world: World, scenario: Scenario, pods: Watcher, events: Watcher) -> None:
        self.world, self.scenario = world, scenario
        self.names = Names(scenario)
        self.bell = asyncio.Event()
        self.refusals: dict[str, str] = {}
        self.made: dict[str, NewPod] = {}
        self._pods, self._events = pods, events
        self._acted: set[tuple[str, str]] = set()
        self._numbers = itertools.count()
        self._path = f"/api/v1/namespaces/{self.names.namespace}"

    @property
    def _api(self) -> Api:
        return self.world.api

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """The bell rings for changes of this scenario."""
        for watcher in (self._pods, self._events):
            watcher.attach(self.names.namespace, self.bell)
        try:
            yield
        finally:
            for watcher in (self._pods, self._events):
                watcher.detach(self.names.namespace)

    def pods(self) -> dict[str, Object]:
        """The scenario's pods by name."""
        return {pod["metadata"]["name"]: pod for pod in self._pods.of(self.names.namespace)}

    def events(self) -> list[Object]:
        """Events of the scenario's namespace."""
        return self._events.of(self.names.namespace)

    # State in

    async def build(self) -> None:
        """Namespace, nodes and pods; returns when our scheduler knows them."""
        metadata = {"name": self.names.namespace, "labels": dict(self.scenario.namespace_labels)}
        await self._api.post("/api/v1/namespaces", {"metadata": metadata})
        if self.world.name == REAL:
            await until(lambda: self._exists(f"{self._path}/serviceaccounts/default"), "service account")
        if self.scenario.quota:
            await self._api.post(f"{self._path}/resourcequotas", resource_quota(self.scenario.quota))
        for name, node in self.scenario.nodes.items():
            if not node.later:
                await self.add_node(name)
        if self.world.name == REAL:
            await self._wait_kube_schedulers()
        for name, pod in self.scenario.pods.items():
            await self._add_present(name, pod)
        await until(self._is_known, "our scheduler knows the state")
        if any(pod.allocated or pod.terminating or pod.phase != RUNNING for pod in self.scenario.pods.values()):
            await self.all_have_seen()  # the page does not tell of these

    async def _wait_kube_schedulers(self) -> None:
        """Returns when both kube-schedulers know the nodes: each has bound a pod there, which is gone again. Else a pod
        may be refused at first, for nodes that only the API server knows, and have events that it should not have."""
        nodes = [self.names.node(name) for name, node in self.scenario.nodes.items() if not node.later]
        pairs = itertools.product(enumerate(nodes), enumerate((SCHEDULER_NAME, DEFAULT_SCHEDULER)))
        probes = {f"probe-{place}-{number}": (node, scheduler) for (place, node), (number, scheduler) in pairs}
        ours = {LABEL: self.names.namespace}
        await asyncio.gather(*(self._probe(name, *where, ours) for name, where in probes.items()))

    async def all_have_seen(self) -> None:
        """Returns when both kube-schedulers and our scheduler know whatever was done until now: they know a node, and
        ours a pod, that were made after that. Else what comes next may meet the state before, by chance."""
        name = f"seen-{next(self._numbers)}"
        node = f"{self.names.namespace}-{name}"
        await self._api.post("/api/v1/nodes", marker_node(node))
        schedulers = enumerate((SCHEDULER_NAME, DEFAULT_SCHEDULER))
        await asyncio.gather(*(self._probe(f"{name}-{number}", node, one, {}) for number, one in schedulers))
        if self.world.extender.alive:
            await self._api.post(f"{self._path}/pods", marker_pod(name, node))
            await until(lambda: self._shows(name, node), "our scheduler knows what was done")
            await self._api.delete(f"{self._path}/pods/{name}")
        await self._api.delete(f"/api/v1/nodes/{node}")

    async def _shows(self, pod: str, node: str) -> bool:
        page = await self.world.metrics()
        wanted = (f'namespace="{self.names.namespace}"', f'pod="{pod}"', f'node="{node}"')
        return any(all(label in line for label in wanted) for line in page.splitlines())

    async def _probe(self, name: str, node: str, scheduler: str, labels: Mapping[str, str]) -> None:
        path = f"{self._path}/pods"
        await self._api.post(path, probe_pod(name, scheduler, {"kubernetes.io/hostname": node, **labels}))

        async def bound() -> bool:
            return "nodeName" in self.pods().get(name, {}).get("spec", {})

        await until(bound, f"{scheduler} knows node {node}")
        await self._api.delete(f"{path}/{name}")

    async def add_node(self, name: str) -> None:
        """Create the node, or put the scenario's label on a node with a plugin; returns when pods may go there."""
        node = self.scenario.nodes[name]
        if node.plugin:
            actual = self.world.plugin_nodes[node.plugin]
            self.names.bind_node(name, actual, await self.world.wait_plugin_node(actual))
            await self._api.patch(f"/api/v1/nodes/{actual}", {"metadata": {"labels": {LABEL: self.names.namespace}}})
            return
        await self._api.post("/api/v1/nodes", node_object(self.names, name, node))
        if self.world.name == REAL:
            await until(lambda: self._is_untainted(name), f"node {name} without taint")

    async def _is_untainted(self, name: str) -> bool:
        taints = (await self._api.get(self._node_path(name)))["spec"].get("taints") or []
        return all(taint["key"] != NOT_READY for taint in taints)

    async def _exists(self, path: str) -> bool:
        try:
            await self._api.get(path)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    async def _add_present(self, name: str, pod: Present) -> None:
        created = await self._api.post(f"{self._path}/pods", present_pod(self.names, name, pod))
        status = {"phase": pod.phase} | (ended_init_containers(created) if pod.init_done else {})
        await self._api.patch(f"{self._path}/pods/{name}/status", {"status": status})
        if pod.terminating:
            await self._api.delete(f"{self._path}/pods/{name}", 3600)

    async def _is_known(self) -> bool:
        """Whether the metrics of our scheduler show every node with cards, every pod with shares, and the quota."""
        page = await self.world.metrics()
        nodes = [
            self.names.node(name)
            for name, node in self.scenario.nodes.items()
            if node.cards and not node.register and not node.later
        ]
        pods = [name for name, pod in self.scenario.pods.items() if any(pod.shares or []) and pod.phase == RUNNING]
        lines = [line for line in page.splitlines() if f'namespace="{self.names.namespace}"' in line]
        quota_known = not self.scenario.quota or any(line.startswith(QUOTA_LIMIT) for line in lines)
        nodes_known = all(f'node="{node}"' in page for node in nodes)
        return quota_known and nodes_known and all(any(f'pod="{pod}"' in line for line in lines) for pod in pods)

    # Steps

    async def create(self, pod: NewPod) -> None:
        """Post the pod, or its copies at once; a refusal is remembered."""
        suffixes = [f"-{number}" for number in range(1, pod.copies + 1)] or [""]
        self.made |= {pod.name + suffix: pod for suffix in suffixes}
        await asyncio.gather(*(self._create(pod, suffix) for suffix in suffixes))

    async def _create(self, pod: NewPod, suffix: str) -> None:
        name = pod.name + suffix
        self.refusals.pop(name, None)
        try:
            await self._api.post(f"{self._path}/pods", new_pod(self.names, pod, suffix))
        except ApiError as error:
            self.refusals[name] = error.message

    async def replace(self, pod: NewPod) -> None:
        """Delete the pod of that name and create another at once, as a controller with fixed names does."""
        await self._api.delete(f"{self._path}/pods/{pod.name}")
        await self.create(pod)

    async def delete(self, name: str, grace_s: int = 0) -> None:
        """Delete a pod."""
        await self._api.delete(f"{self._path}/pods/{name}", grace_s)

    async def set_status(self, name: str, status: Mapping[str, Any]) -> None:
        """Write part of a pod's status, as its kubelet would."""
        await self._api.patch(f"{self._path}/pods/{name}/status", {"status": dict(status)})

    async def init_done(self, name: str) -> None:
        """The pod's init containers have ended with code 0."""
        await self.set_status(name, ended_init_containers(await self._api.get(f"{self._path}/pods/{name}")))

    async def annotate_node(self, name: str, annotations: Mapping[str, str | None]) -> None:
        """Write annotations of a node; None removes one."""
        filled = {key: None if text is None else self.names.fill(text) for key, text in annotations.items()}
        await self._api.annotate(self._node_path(name), filled)

    async def register(self, name: str, cards: Any) -> None:
        """The node's plugin registers these cards."""
        ids = self.names.cards(name)
        more = [f"GPU-{self.names.node(name)}-{index}" for index in range(len(ids), len(cards))]
        self.names.bind_node(name, self.names.node(name), [*ids, *more])
        await self.annotate_node(name, {REGISTER: register(cards, [*ids, *more], "json")})

    async def set_unschedulable(self, name: str, value: bool) -> None:
        """What `kubectl cordon` and `uncordon` do."""
        await self._api.patch(self._node_path(name), {"spec": {"unschedulable": value}})

    async def set_quota(self, hard: Mapping[str, int]) -> None:
        """Change the namespace's ResourceQuota."""
        await self._api.patch(f"{self._path}/resourcequotas/shares", {"spec": resource_quota(hard)["spec"]})

    async def remove_node(self, name: str) -> None:
        """Delete the Node object."""
        await self._api.delete(self._node_path(name))

    async def set_failure_policy(self, policy: str) -> None:
        """Of the webhook; where the webhook is down, returns when the API server acts on it."""
        await self.world.set_failure_policy(policy)
        if not self.world.extender.alive:
            await until(lambda: self._dry_run_passes(policy == "Ignore"), f"failure policy {policy} acts")

    async def _dry_run_passes(self, wanted: bool) -> bool:
        pod = new_pod(self.names, NewPod("probe"))
        try:
            await self._api.post(f"{self._path}/pods?dryRun=All", pod)
        except ApiError:
            return not wanted
        return wanted

    # What plugin and kubelet do on nodes that only the API has

    async def act(self) -> None:
        """Allocate and run pods that are bound to such nodes."""
        for pod in self.pods().values():
            name = self.names.short_node(pod["spec"].get("nodeName", ""))
            node = self.scenario.nodes.get(name)
            if node is None or node.plugin or not node.allocates:
                continue
            if pod["status"].get("phase") == PENDING and pod["metadata"]["name"] in self.made:
                await self._run(pod)

    async def _run(self, pod: Object) -> None:
        metadata = pod["metadata"]
        key = (metadata["uid"], "run")
        if key in self._acted or "deletionTimestamp" in metadata:
            return
        self._acted.add(key)
        path = f"{self._path}/pods/{metadata['name']}"
        annotations = metadata.get("annotations") or {}
        with contextlib.suppress(ApiError):  # the pod or the node may go meanwhile
            if annotations.get(BIND_PHASE) == "allocating":
                erased = ";" * annotations[TO_ALLOCATE].count(";")
                await self._api.annotate(path, {TO_ALLOCATE: erased, BIND_PHASE: "success"})
                await self._api.annotate(f"/api/v1/nodes/{pod['spec']['nodeName']}", {NODE_LOCK: None})
            await self.set_status(metadata["name"], {"phase": RUNNING})

    # The end

    async def clear(self) -> None:
        """Delete everything; the API server may take its time with the namespace."""
        await self._api.delete(f"{self._path}/pods")
        for name, node in self.scenario.nodes.items():
            if node.plugin:
                with contextlib.suppress(ApiError):
                    await self._api.patch(self._node_path(name), {"metadata": {"labels": {LABEL: None}}})
            else:
                await self._api.delete(self._node_path(name))
        await self._api.delete(f"/api/v1/namespaces/{self.names.namespace}")

    def _node_path(self, name: str) -> str:
        return f"/api/v1/nodes/{self.names.node(name)}"
