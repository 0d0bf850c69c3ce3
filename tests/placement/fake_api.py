"""An API server of a few objects with compare-and-set, faults and gates, and a sink of events."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from hami.core import keys
from hami.core.errors import ConflictError, NotFoundError
from hami.core.objects import (
    Node,
    ObjectMeta,
    Pod,
)
from hami.placement.world import World
from tests.placement.fakes import NVIDIA


class FakeApi:
    """Implements ClusterWriter with resourceVersions, like kube-apiserver; feeds the world unless `silent`.

    `faults[(verb, "before" | "after")]` is a list of exceptions, raised in turn before or after the write takes effect.
    """

    def __init__(self, world: World | None = None) -> None:
        self.world = world
        self.nodes: dict[str, Node] = {}
        self.pods: dict[tuple[str, str], Pod] = {}
        self.calls: list[tuple[str, str]] = []
        self.faults: dict[tuple[str, str], list[Exception]] = {}
        self.hooks: dict[tuple[str, str], Callable[[], object]] = {}
        self.gates: dict[str, asyncio.Event] = {}
        self._version = 100

    # What tests do to the cluster

    def put_node(self, node: Node) -> Node:
        node = msgspec.structs.replace(node, metadata=self._stamped(node.metadata))
        self.nodes[node.name] = node
        if self.world is not None:
            self.world.on_node(node)
        return node

    def put_pod(self, pod: Pod) -> Pod:
        pod = msgspec.structs.replace(pod, metadata=self._stamped(pod.metadata))
        self.pods[pod.metadata.namespace, pod.metadata.name] = pod
        if self.world is not None:
            self.world.on_pod(pod)
        return pod

    def delete_pod(self, namespace: str, name: str) -> None:
        pod = self.pods.pop((namespace, name))
        if self.world is not None:
            self.world.on_pod_deleted(namespace, name, pod.metadata.uid)

    def annotate_node(self, name: str, **changes: str | None) -> None:
        """By short names as in `make_node`."""
        named = {"lock": keys.NODE_LOCK, "handshake": NVIDIA.handshake_key, "cordon": keys.DEVICE_CORDON}
        self._merge_node(name, {named[short]: value for short, value in changes.items()})

    def serve(self, namespace: str, name: str) -> None:
        """What the device plugin does after the last container: phase success, token off."""
        pod = self.pods[namespace, name]
        self._merge_pod(pod, {keys.BIND_PHASE: keys.PHASE_SUCCESS})
        self._merge_node(pod.spec.node_name, {keys.NODE_LOCK: None})

    def lock(self, node: str) -> str:
        return self.nodes[node].annotations.get(keys.NODE_LOCK, "")

    def pod(self, name: str, namespace: str = "default") -> Pod:
        return self.pods[namespace, name]

    def count(self, verb: str) -> int:
        return sum(called == verb for called, _ in self.calls)

    # ClusterWriter

    async def get_node(self, name: str) -> Node:
        await self._enter("get_node", name)
        if name not in self.nodes:
            raise NotFoundError(404, "NotFound", f'nodes "{name}" not found')
        return self.nodes[name]

    async def get_pod(self, namespace: str, name: str) -> Pod:
        await self._enter("get_pod", name)
        if (namespace, name) not in self.pods:
            raise NotFoundError(404, "NotFound", f'pods "{name}" not found')
        return self.pods[namespace, name]

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        await self._enter("list_pods", node)
        return [pod for pod in self.pods.values() if pod.spec.node_name == node]

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str
    ) -> Node:
        await self._enter("patch_node", name)
        node = self.nodes.get(name)
        if node is None:
            raise NotFoundError(404, "NotFound", f'nodes "{name}" not found')
        if resource_version and node.metadata.resource_version != resource_version:
            raise ConflictError(409, "Conflict", "the object has been modified")
        node = self._merge_node(name, annotations)
        self._leave("patch_node")
        return node

    async def patch_pod_annotations(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        resource_version: str = "",
        labels: Mapping[str, str | None] | None = None,
    ) -> Pod:
        await self._enter("patch_pod", name)
        pod = self._pod_with(namespace, name, uid, resource_version)
        if labels:
            kept = {key: value for key, value in (pod.labels | dict(labels)).items() if value is not None}
            pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=kept))
        pod = self._merge_pod(pod, annotations)
        self._leave("patch_pod")
        return pod

    async def bind(
        self, namespace: str, name: str, *, uid: str, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        await self._enter("bind", name)
        pod = self._pod_with(namespace, name, uid, resource_version)
        if pod.spec.node_name:
            raise ConflictError(409, "Conflict", f"pod {name} is already assigned to node {pod.spec.node_name}")
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        meta = msgspec.structs.replace(pod.metadata, annotations=pod.annotations | dict(annotations))
        self.put_pod(msgspec.structs.replace(pod, spec=spec, metadata=meta))
        self._leave("bind")

    # Inside

    async def _enter(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        await asyncio.sleep(0)
        if verb in self.gates:
            await self.gates[verb].wait()
        self._trip(verb, "before")

    def _leave(self, verb: str) -> None:
        self._trip(verb, "after")

    def _trip(self, verb: str, moment: str) -> None:
        hook = self.hooks.pop((verb, moment), None)
        if hook is not None:
            hook()
        waiting = self.faults.get((verb, moment))
        if waiting:
            raise waiting.pop(0)

    def _pod_with(self, namespace: str, name: str, uid: str, resource_version: str) -> Pod:
        pod = self.pods.get((namespace, name))
        if pod is None:
            raise NotFoundError(404, "NotFound", f'pods "{name}" not found')
        if uid != pod.metadata.uid or (resource_version and resource_version != pod.metadata.resource_version):
            raise ConflictError(409, "Conflict", "precondition failed")
        return pod

    def _merge_node(self, name: str, annotations: Mapping[str, str | None]) -> Node:
        node = self.nodes[name]
        meta = msgspec.structs.replace(node.metadata, annotations=_merged(node.annotations, annotations))
        return self.put_node(msgspec.structs.replace(node, metadata=meta))

    def _merge_pod(self, pod: Pod, annotations: Mapping[str, str | None]) -> Pod:
        meta = msgspec.structs.replace(pod.metadata, annotations=_merged(pod.annotations, annotations))
        return self.put_pod(msgspec.structs.replace(pod, metadata=meta))

    def _stamped(self, meta: ObjectMeta) -> ObjectMeta:
        self._version += 1
        return msgspec.structs.replace(meta, resource_version=str(self._version))


def _merged(old: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    merged: dict[str, str | None] = {**old, **changes}
    return {key: value for key, value in merged.items() if value is not None}


class FakeEvents:
    """Implements EventSink."""

    def __init__(self) -> None:
        self.recorded: list[tuple[str, bool, str, str]] = []

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        self.recorded.append((pod.key, warning, reason, message))

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        self.recorded.append((node, warning, reason, message))
