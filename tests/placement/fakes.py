"""A small world for placement tests: a clock to turn, a registry, pods and nodes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from hami.core import keys
from hami.core.codec import RegisterForm, encode_register
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
