"""Requests and nodes in words, the same for text and JSON."""

from __future__ import annotations

from hami.core.model import ContainerKind, DeviceRequest
from hami.core.objects import Node, Pod

_KINDS = {ContainerKind.INIT: "init container", ContainerKind.SIDECAR: "sidecar", ContainerKind.APP: "container"}


def asks(request: DeviceRequest) -> str:
    """`2 NVIDIA cards, 4000 MiB and 30 % cores of each`."""
    cards = f"{request.count} {request.vendor} card{'s' if request.count != 1 else ''}"
    memory = f"{request.memory_mib} MiB" if request.memory_mib else f"{request.memory_percent} % of the memory"
    cores = f"{request.core_percent} % cores" if request.core_percent else "cores without a limit"
    return f"{cards}, {memory} and {cores}" + (" of each" if request.count != 1 else "")


def container(pod: Pod, index: int, kind: ContainerKind) -> str:
    """`init container load`."""
    return f"{_KINDS[kind]} {pod.containers[index].name}"


def notes(pod: Pod, scheduler_name: str, chosen: Node | None) -> list[str]:
    """What stands in the way outside of cards."""
    found = []
    name = pod.spec.scheduler_name
    if name not in ("", scheduler_name):
        found.append(f"its schedulerName is {name}: {scheduler_name} does not place it")
    if chosen is not None and chosen.spec.unschedulable:
        found.append(f"node {chosen.name} is cordoned: kube-scheduler does not offer it")
    return found
