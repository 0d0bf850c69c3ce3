"""Objects for tests, put into the API server stand-in through its front door."""

from __future__ import annotations

from typing import Any

import msgspec

from hami.core.objects import Node, Pod, node_decoder, pod_decoder
from hami.kube import paths
from hami.kube.client import ApiClient


async def make_node(client: ApiClient, name: str, annotations: dict[str, str] | None = None) -> Node:
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations or {}}}
    return node_decoder.decode(await client.request("POST", paths.NODES, msgspec.json.encode(body)))


async def make_pod(client: ApiClient, name: str, *, node: str = "", **metadata: Any) -> Pod:
    spec: dict[str, Any] = {"containers": [{"name": "main", "image": "none"}]}
    if node:
        spec["nodeName"] = node
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, **metadata}, "spec": spec}
    return pod_decoder.decode(await client.request("POST", paths.pods_in("default"), msgspec.json.encode(body)))
