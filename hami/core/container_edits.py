"""What a container gets from the device plugin: vendors compute it, the plugin carries it to kubelet."""

from __future__ import annotations

import msgspec


class Mount(msgspec.Struct, frozen=True):
    """A host path in the container."""

    container_path: str
    host_path: str
    read_only: bool


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file in the container; permissions as in `rwm`."""

    container_path: str
    host_path: str
    permissions: str = "rw"


class ContainerEdits(msgspec.Struct, frozen=True):
    """Variables, mounts, device files, annotations and CDI names of one container, in the order they are sent."""

    envs: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    cdi_devices: tuple[str, ...] = ()
