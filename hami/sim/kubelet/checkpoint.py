"""kubelet_internal_checkpoint: the file in which kubelet's device manager remembers who has which devices.

Form of pkg/kubelet/cm/devicemanager/checkpoint. The checksum is ours (CRC-32 of the data): readers of the file other
than kubelet do not verify it, and kubelet never reads this one.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from hami.sim.kubelet.allocation import Allocation

FILE_NAME: Final = "kubelet_internal_checkpoint"


def write(directory: Path, allocations: Iterable[Allocation], registered: Mapping[str, Iterable[str]]) -> None:
    """Replace the file in one step. Raises OSError."""
    entries = [
        {
            "PodUID": one.pod_uid,
            "ContainerName": one.container,
            "ResourceName": one.resource,
            "DeviceIDs": {node: list(ids) for node, ids in one.numa.items()},
            "AllocResp": base64.b64encode(one.response).decode(),
        }
        for one in allocations
    ]
    data = {
        "PodDeviceEntries": entries or None,
        "RegisteredDevices": {resource: sorted(ids) for resource, ids in registered.items()},
    }
    raw = msgspec.json.encode({"Data": data, "Checksum": zlib.crc32(msgspec.json.encode(data))})
    fresh = directory / f".{FILE_NAME}"
    fresh.write_bytes(raw)
    fresh.replace(directory / FILE_NAME)


def read(directory: Path) -> tuple[list[Allocation], list[str]]:
    """Allocations (without names of pods, which the file does not hold) and resources; nothing where no file is."""
    path = directory / FILE_NAME
    if not path.exists():
        return [], []
    data: dict[str, Any] = msgspec.json.decode(path.read_bytes())["Data"]
    allocations = [
        Allocation(
            pod_uid=entry["PodUID"],
            namespace="",
            pod="",
            container=entry["ContainerName"],
            resource=entry["ResourceName"],
            device_ids=tuple(one for ids in entry["DeviceIDs"].values() for one in ids),
            numa={node: tuple(ids) for node, ids in entry["DeviceIDs"].items()},
            response=base64.b64decode(entry["AllocResp"]),
        )
        for entry in data["PodDeviceEntries"] or []
    ]
    return allocations, list(data["RegisteredDevices"] or {})
