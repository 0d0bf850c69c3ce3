"""An API server's answers out of memory, at once: for tests of many cases and for figures of the plugin alone."""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec

from hami.core.errors import ConflictError, NotFoundError
from hami.core.objects import Node, ObjectMeta, Pod
from hami.deviceplugin.node_view import NodeView
from hami.deviceplugin.seen_writer import Seen
from hami.kube.writer import KubeWriter


class MemoryApi(KubeWriter):
    """One node and its pods, with uids and resource versions as preconditions."""

    def __init__(self, node: str) -> None:
        self.node = Node(ObjectMeta(name=node, resource_version="1"))
        self.pods: dict[str, Pod] = {}
        self.requests = 0

    async def get_node(self, name: str) -> Node:
        self.requests += 1
        return self.node

    async def get_pod(self, namespace: str, name: str) -> Pod:
        self.requests += 1
        return self._pod(namespace, name)

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        self.requests += 1
        return [pod for pod in self.pods.values() if pod.spec.node_name == node]

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> Node:
        self.requests += 1
        self.node = msgspec.structs.replace(
            self.node, metadata=_patched(self.node.metadata, annotations, resource_version)
        )
        return self.node

    async def drop_node_annotation(self, name: str, key: str, expected: str) -> Node:
        if self.node.annotations.get(key) != expected:
            self.requests += 1
            raise ConflictError(409, "Conflict", key)
        return await self.patch_node_annotations(name, {key: None})

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
        self.requests += 1
        pod = self._pod(namespace, name)
        if uid and uid != pod.metadata.uid:
            raise ConflictError(409, "Conflict", "uid")
        meta = _patched(pod.metadata, annotations, resource_version)
        self.pods[pod.key] = pod = msgspec.structs.replace(pod, metadata=meta)
        return pod

    def _pod(self, namespace: str, name: str) -> Pod:
        pod = self.pods.get(f"{namespace}/{name}")
        if pod is None:
            raise NotFoundError(404, "NotFound", f"pod {name}")
        return pod


def _patched(meta: ObjectMeta, annotations: Mapping[str, str | None], resource_version: str) -> ObjectMeta:
    if resource_version and resource_version != meta.resource_version:
        raise ConflictError(409, "Conflict", "resourceVersion")
    merged = {**(meta.annotations or {}), **annotations}
    return msgspec.structs.replace(
        meta,
        annotations={key: text for key, text in merged.items() if text is not None},
        resource_version=str(int(meta.resource_version or "1") + 1),
    )


class SeenMemoryApi(Seen, MemoryApi):
    """The same, its answers told to a view, as the plugin's writer does."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self.view = NodeView(node, time.monotonic)
