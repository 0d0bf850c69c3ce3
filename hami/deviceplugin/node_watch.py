"""Follows this node and its pods, as kubelet does: two watches, each of a handful of objects (node_view.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hami.core.objects import Node, Pod, node_decoder, pod_decoder
from hami.deviceplugin.node_view import NodeView
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.reflector import EventType, Reflector


class NodeWatch:
    """Feeds `view` from the API server. Without the right to watch it stays empty, and every question is a read."""

    def __init__(self, client: ApiClient, node_name: str, view: NodeView) -> None:
        self._view = view
        self._node = Reflector(
            client,
            paths.NODES,
            node_decoder,
            self._nodes,
            self._node_event,
            field_selector=f"metadata.name={node_name}",
            on_restored=view.node_gone,
        )
        self._pods = Reflector(
            client,
            paths.PODS,
            pod_decoder,
            view.pods_listed,
            self._pod_event,
            field_selector=f"spec.nodeName={node_name}",
            on_restored=view.pods_restored,
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._node.run())
            tasks.create_task(self._pods.run())

    def _nodes(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self._view.node_seen(node)
        if not nodes:
            self._view.node_gone()

    def _node_event(self, event: EventType, node: Node) -> None:
        if event is EventType.DELETED:
            self._view.node_gone()
        else:
            self._view.node_seen(node)

    def _pod_event(self, event: EventType, pod: Pod) -> None:
        if event is EventType.DELETED:
            self._view.pod_gone(pod.key, pod.metadata.uid)
        else:
            self._view.pod_seen(pod)
