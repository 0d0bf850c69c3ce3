"""A writer whose answers are remembered: each shows the node or a pod as the API server has it (node_view.py)."""

from __future__ import annotations

from collections.abc import Mapping

from hami.core.errors import NotFoundError
from hami.core.objects import Node, Pod
from hami.deviceplugin.node_view import NodeView
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter


class Seen(KubeWriter):
    """Mix-in before a `KubeWriter`: tells `view` what each call was answered."""

    view: NodeView

    async def get_node(self, name: str) -> Node:
        asked_at_s = self.view.now_s()
        return self._node(await super().get_node(name), asked_at_s)

    async def get_pod(self, namespace: str, name: str) -> Pod:
        try:
            pod = await super().get_pod(namespace, name)
        except NotFoundError:
            self.view.pod_gone(f"{namespace}/{name}")
            raise
        self.view.pod_seen(pod)
        return pod

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        pods = await super().list_pods_on_node(node)
        for pod in pods:
            self.view.pod_seen(pod)
        return pods

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> Node:
        asked_at_s = self.view.now_s()
        return self._node(await super().patch_node_annotations(name, annotations, resource_version), asked_at_s)

    async def drop_node_annotation(self, name: str, key: str, expected: str) -> Node:
        asked_at_s = self.view.now_s()
        return self._node(await super().drop_node_annotation(name, key, expected), asked_at_s)

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
        pod = await super().patch_pod_annotations(
            namespace, name, annotations, uid=uid, resource_version=resource_version, labels=labels
        )
        self.view.pod_seen(pod)
        return pod

    def _node(self, node: Node, asked_at_s: float) -> Node:
        self.view.node_answered(node, asked_at_s)
        return node


class SeenWriter(Seen):
    """Writes through `client`."""

    def __init__(self, client: ApiClient, view: NodeView) -> None:
        super().__init__(client)
        self.view = view
