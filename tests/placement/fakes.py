"""A small world for placement tests: a clock to turn, a registry, pods and nodes, an API with compare-and-set."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hami.core import keys
from hami.core.codec import RegisterForm, encode_register
from hami.core.errors import ConflictError, NotFoundError
from hami.core.model import Device, Policies
from hami.core.objects import (
    Container,
    ContainerState,
    ContainerStatus,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    ResourceRequirements,
    TerminatedState,
)
from hami.placement.world import World
from hami.vendors.nvidia.device import Nvidia

NVIDIA = Nvidia()
REGISTRY = (NVIDIA,)
COUNT = "nvidia.com/gpu"
MEMORY = "nvidia.com/gpumem"
CORES = "nvidia.com/gpucores"
START_UNIX_S = 1_800_000_000.0


class FakeClock:
    """Time that only the test moves, unless `real` adds the machine's own (for waits with a limit)."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.real = False

    def monotonic_s(self) -> float:
        return self.now_s + (time.monotonic() if self.real else 0.0)

    def unix_s(self) -> float:
        return START_UNIX_S + self.now_s

    def advance(self, seconds: float) -> None:
        self.now_s += seconds


def make_world(clock: FakeClock | None = None, **options: Any) -> World:
    return World(REGISTRY, Policies(), clock or FakeClock(), **options)


def card(number: int, *, node: str = "", **fields: Any) -> Device:
    values: dict[str, Any] = {
        "id": f"GPU-{node}{number}",
        "index": number,
        "slots": 10,
        "memory_mib": 16384,
        "core_percent": 100,
        "type": "NVIDIA A100-SXM4-80GB",
        "numa": 0,
        "healthy": True,
        "vendor": "NVIDIA",
    }
    return Device(**(values | fields))


def make_node(
    name: str,
    cards: int | list[Device] = 2,
    *,
    uid: str = "",
    version: int = 1,
    allocatable: int | None = None,
    register: str | None = None,
    **annotations: str | None,
) -> Node:
    devices = [card(number) for number in range(cards)] if isinstance(cards, int) else cards
    text = encode_register(devices, RegisterForm.JSON) if register is None else register
    notes = {NVIDIA.register_key: text} if text else {}
    named = {"handshake": NVIDIA.handshake_key, "cordon": keys.DEVICE_CORDON, "lock": keys.NODE_LOCK}
    notes |= {named[short]: value for short, value in annotations.items() if value is not None}
    offered: dict[str, Any] | None = {COUNT: str(allocatable)} if allocatable is not None else None
    return Node(
        metadata=ObjectMeta(name=name, uid=uid or f"uid-{name}", resource_version=str(version), annotations=notes),
        status=NodeStatus(allocatable=offered),
    )


def container(
    count: int = 1, memory_mib: int = 0, cores: int = 0, *, name: str = "c", restart: str | None = None
) -> Container:
    wanted = {COUNT: count, MEMORY: memory_mib, CORES: cores}
    limits: dict[str, Any] = {key: str(value) for key, value in wanted.items() if value}
    return Container(
        name=name, resources=ResourceRequirements(limits=limits) if limits else None, restart_policy=restart
    )


def make_pod(
    name: str,
    *containers: Container,
    init: tuple[Container, ...] = (),
    uid: str = "",
    version: int = 1,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            resource_version=str(version),
            annotations=dict(annotations or {}),
        ),
        spec=PodSpec(init_containers=init or None, containers=containers or (container(memory_mib=1000),)),
        status=PodStatus(phase="Pending"),
    )


def annotated(pod: Pod, node: str, text: str, *, bound: bool = True, phase: str = "", **more: str) -> Pod:
    """The pod with an allocation in its annotations, on its node if `bound`."""
    notes = pod.annotations | {keys.VGPU_NODE: node, NVIDIA.allocated_key: text, **more}
    if phase:
        notes[keys.BIND_PHASE] = phase
    meta = msgspec.structs.replace(pod.metadata, annotations=notes)
    spec = msgspec.structs.replace(pod.spec, node_name=node if bound else "")
    return msgspec.structs.replace(pod, metadata=meta, spec=spec)


def with_phase(pod: Pod, phase: str) -> Pod:
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase=phase))


def deleted(pod: Pod) -> Pod:
    meta = msgspec.structs.replace(pod.metadata, deletion_timestamp="2027-01-15T08:00:00Z")
    return msgspec.structs.replace(pod, metadata=meta)


def init_ended(pod: Pod, exit_code: int = 0) -> Pod:
    ended = ContainerState(terminated=TerminatedState(exit_code=exit_code))
    statuses = tuple(
        ContainerStatus(name=each.name, state=None if each.restart_policy == "Always" else ended)
        for each in pod.spec.init_containers or ()
    )
    return msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, init_container_statuses=statuses))


def unscheduled(pod: Pod, at: str, version: int = 2, message: str = "0/2 nodes are available") -> Pod:
    condition = PodCondition(
        type="PodScheduled", status="False", reason="Unschedulable", message=message, last_transition_time=at
    )
    return msgspec.structs.replace(
        pod,
        status=msgspec.structs.replace(pod.status, conditions=(condition,)),
        metadata=msgspec.structs.replace(pod.metadata, resource_version=str(version)),
    )


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


def totals_from_text(pods: list[Pod]) -> dict[tuple[str, str], tuple[int, int, int]]:
    """(node, card) -> slots, memory, cores of bound or annotated pods, worked out from annotation text alone."""
    totals: dict[tuple[str, str], tuple[int, int, int]] = {}
    for pod in pods:
        text = pod.annotations.get("hami.io/vgpu-devices-allocated", "")
        node = pod.spec.node_name
        if not text or not node or pod.finished:
            continue
        segments = text.split(";")[:-1]
        inits = len(pod.spec.init_containers or ())
        per_card: dict[str, list[tuple[int, int, int]]] = {}
        app: dict[str, tuple[int, int, int]] = {}
        for position, segment in enumerate(segments):
            for entry in filter(None, segment.split(":")):
                device, _, memory, cores = entry.split(",")
                use = (1, int(memory), int(cores))
                if position < inits:
                    per_card.setdefault(device, []).append(use)
                else:
                    app[device] = tuple(map(sum, zip(app.get(device, (0, 0, 0)), use, strict=True)))  # type: ignore[assignment]
        for device in app.keys() | per_card.keys():
            uses = [app.get(device, (0, 0, 0)), *per_card.get(device, [])]
            peak = tuple(max(column) for column in zip(*uses, strict=True))
            old = totals.get((node, device), (0, 0, 0))
            totals[node, device] = tuple(map(sum, zip(old, peak, strict=True)))  # type: ignore[assignment]
    return totals
