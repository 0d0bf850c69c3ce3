"""One look at a cluster: nodes, pods and quotas, live or from `kubectl get nodes,pods,resourcequotas -A -o json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from hami.core import yaml_text
from hami.core.device_type import Registry
from hami.core.errors import ApiError, ConfigError
from hami.core.lenient import lenient
from hami.core.model import Policies
from hami.core.objects import Node, Pod, ResourceQuota, node_decoder, pod_decoder, quota_decoder
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.listing import pages
from hami.placement.world import World

SAVED_BY: Final = "kubectl get nodes,pods,resourcequotas -A -o json"
_REFUSED: Final = (403, 404)


class Snapshot(msgspec.Struct):
    """Objects of one moment; `unix_s` is that moment, `notes` say what could not be read."""

    unix_s: float
    nodes: list[Node] = []
    pods: list[Pod] = []
    quotas: list[ResourceQuota] = []
    notes: list[str] = []

    def pod(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self.pods if pod.key == f"{namespace}/{name}"), None)

    def node(self, name: str) -> Node | None:
        return next((node for node in self.nodes if node.name == name), None)


class _Item(msgspec.Struct):
    kind: str = ""
    items: list[msgspec.Raw] | None = None


_item_decoder: Final = msgspec.json.Decoder(_Item)


def read_dump(text: bytes, source: str, unix_s: float) -> Snapshot:
    """Objects of a JSON list, or of one list per kind after each other. Raises ConfigError naming `source`."""
    snapshot = Snapshot(unix_s)
    try:
        _take(snapshot, text)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{source} is no output of kubectl get nodes,pods,resourcequotas -A -o json: {error}"
        ) from error
    if not snapshot.nodes:
        raise ConfigError(f"{source} has no nodes: save it with kubectl get nodes,pods,resourcequotas -A -o json")
    return snapshot


def _take(snapshot: Snapshot, raw: bytes | msgspec.Raw) -> None:
    head = _item_decoder.decode(raw)
    if head.items is not None:
        for item in head.items:
            _take(snapshot, item)
    elif head.kind == "Node":
        snapshot.nodes.append(lenient(node_decoder, raw))
    elif head.kind == "Pod":
        snapshot.pods.append(lenient(pod_decoder, raw))
    elif head.kind == "ResourceQuota":
        snapshot.quotas.append(lenient(quota_decoder, raw))


async def read_live(client: ApiClient, unix_s: float) -> Snapshot:
    """Objects of the cluster, by plain GETs. Without the right to read quotas they are left out, with a note."""
    snapshot = Snapshot(unix_s)
    async for nodes in pages(client, paths.NODES, node_decoder):
        snapshot.nodes += nodes.objects
    async for pods in pages(client, paths.PODS, pod_decoder):
        snapshot.pods += pods.objects
    try:
        async for quotas in pages(client, paths.RESOURCE_QUOTAS, quota_decoder):
            snapshot.quotas += quotas.objects
    except ApiError as error:
        if error.status not in _REFUSED:
            raise
        snapshot.notes.append(f"resource quotas are left out: {error}")
    return snapshot


def read_pod_file(path: str, text: str, namespace: str) -> Pod:
    """The first pod of a YAML or JSON file, or the pod template of the first workload. Raises ConfigError."""
    try:
        found = next((body for each in _documents(text, path) if (body := _pod_of(each)) is not None), None)
        if found is None:
            raise ConfigError(f"{path}: no Pod in it, and nothing with a pod template")
        pod = lenient(pod_decoder, msgspec.json.encode(found))
    except (msgspec.DecodeError, TypeError, RecursionError, UnicodeEncodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    meta = pod.metadata
    named = msgspec.structs.replace(
        meta, namespace=meta.namespace or namespace, name=meta.name or meta.generate_name or Path(path).stem
    )
    return msgspec.structs.replace(pod, metadata=named)


def _documents(text: str, path: str) -> Iterator[dict[str, Any]]:
    """JSON is tried first: YAML reads the two halves of an escaped emoji as two characters that are none."""
    try:
        found = [msgspec.json.decode(text)]
    except (msgspec.DecodeError, UnicodeEncodeError):
        found = yaml_text.documents(text, path)
    for document in found:
        listed = document.get("items") if isinstance(document, dict) else None
        yield from (each for each in (listed if isinstance(listed, list) else [document]) if isinstance(each, dict))


def _pod_of(document: dict[str, Any]) -> dict[str, Any] | None:
    if document.get("kind") == "Pod":
        return document
    spec = _mapping(document, "spec")
    spec = _mapping(_mapping(spec, "jobTemplate"), "spec") or spec
    template = _mapping(spec, "template")
    if "spec" not in template:
        return None
    owner = _mapping(document, "metadata")
    named = {key: owner[key] for key in ("name", "namespace") if owner.get(key)}
    return {"metadata": {**named, **_mapping(template, "metadata")}, "spec": template["spec"]}


def _mapping(of: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping under a key; what is none is as good as absent, kube-apiserver would refuse it."""
    found = of.get(key)
    return found if isinstance(found, dict) else {}


class _FrozenClock:
    """The moment of the look."""

    def __init__(self, unix_s: float) -> None:
        self._unix_s = unix_s

    def monotonic_s(self) -> float:
        return 0.0

    def unix_s(self) -> float:
        return self._unix_s


def world_of(
    snapshot: Snapshot, registry: Registry, policies: Policies, node_labels: tuple[tuple[str, str], ...] = ()
) -> World:
    """Placement's state as a scheduler that has just started would have it.

    How long a device plugin has been silent cannot be told from one look, so its stamp ages nobody out.
    """
    clock = _FrozenClock(snapshot.unix_s)
    world = World(registry, policies, clock, node_label_selector=node_labels, reported_limit_s=0.0)
    for node in snapshot.nodes:
        world.on_node(node, listed=True)
    _feed(world, snapshot.pods)
    world.quotas.replace(snapshot.quotas)
    world.settle_now()
    return world


def _feed(world: World, pods: Iterable[Pod]) -> None:
    for pod in pods:
        world.on_pod(pod)
