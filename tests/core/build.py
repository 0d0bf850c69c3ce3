"""Small builders shared by the tests of the pure rooms."""

from collections.abc import Mapping
from typing import Any

import msgspec

from hami.core.model import Device, DeviceShare, NodeState, Use
from hami.core.objects import Container, Pod, pod_decoder
from hami.vendors.nvidia.device import Nvidia

A100 = "NVIDIA A100-SXM4-80GB"
REGISTRY = (Nvidia(),)


def pod(
    *containers: Mapping[str, object],
    inits: tuple[Mapping[str, object], ...] = (),
    annotations: Mapping[str, str] | None = None,
    **metadata: object,
) -> Pod:
    """A pod from JSON-like containers; `limits` at the top of a container is short for resources.limits."""
    body = {
        "metadata": {"name": "p", "namespace": "default", "annotations": dict(annotations or {}), **metadata},
        "spec": {"containers": _named("c", containers), "initContainers": _named("i", inits)},
    }
    return pod_decoder.decode(msgspec.json.encode(body))


def container(limits: Mapping[str, object] | None = None, **fields: object) -> Container:
    return msgspec.convert(_named("c", ({"limits": limits or {}, **fields},))[0], Container)


def gpu(count: int = 1, *, mem: object = None, cores: object = None, percent: object = None) -> dict[str, object]:
    """A container that asks for cards."""
    wishes = {"gpu": count, "gpumem": mem, "gpucores": cores, "gpumem-percentage": percent}
    return {"limits": {f"nvidia.com/{name}": wish for name, wish in wishes.items() if wish is not None}}


def device(card: str = "GPU-a", **fields: object) -> Device:
    values: dict[str, object] = {
        "id": card, "index": 0, "slots": 10, "memory_mib": 16384, "core_percent": 100, "type": A100, "numa": 0,
        "healthy": True, "vendor": "NVIDIA", **fields,
    }  # fmt: skip
    return Device(**values)  # type: ignore[arg-type]


def node(*devices: Device, uses: Mapping[str, Use] | None = None, **fields: Any) -> NodeState:
    taken = uses or {}
    return NodeState("n1", devices, tuple(taken.get(each.id, Use()) for each in devices), **fields)


def share(card: str = "GPU-a", memory_mib: int = 3000, core_percent: int = 30) -> DeviceShare:
    return DeviceShare(card, "NVIDIA", memory_mib, core_percent)


def _named(prefix: str, containers: tuple[Mapping[str, object], ...]) -> list[dict[str, object]]:
    named: list[dict[str, object]] = []
    for position, given in enumerate(containers):
        fields = {"name": f"{prefix}{position}", **given}
        limits = fields.pop("limits", None)
        if limits:
            fields["resources"] = {"limits": limits}
        named.append(fields)
    return named
