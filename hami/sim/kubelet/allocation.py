"""One Allocate response as the kubelet keeps it: what a container gets from a device plugin."""

from __future__ import annotations

from dataclasses import dataclass

from hami.proto import deviceplugin_v1beta1_pb2 as pb


@dataclass(frozen=True, slots=True)
class Mount:
    """A bind mount that the plugin asked for."""

    container_path: str
    host_path: str
    read_only: bool


@dataclass(frozen=True, slots=True)
class DeviceNode:
    """A device file that the plugin asked for."""

    container_path: str
    host_path: str
    permissions: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """Devices of one resource given to one container, and the plugin's answer taken apart."""

    pod_uid: str
    namespace: str
    pod: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    numa: dict[str, tuple[str, ...]]
    """Device ids by NUMA node as text; `-1` for devices without topology (the checkpoint's form)."""
    response: bytes
    """The ContainerAllocateResponse as protobuf."""

    def _decoded(self) -> pb.ContainerAllocateResponse:
        return pb.ContainerAllocateResponse.FromString(self.response)

    @property
    def env(self) -> dict[str, str]:
        return dict(self._decoded().envs)

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self._decoded().annotations)

    @property
    def mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(one.container_path, one.host_path, one.read_only) for one in self._decoded().mounts)

    @property
    def devices(self) -> tuple[DeviceNode, ...]:
        return tuple(DeviceNode(one.container_path, one.host_path, one.permissions) for one in self._decoded().devices)

    @property
    def cdi_devices(self) -> tuple[str, ...]:
        return tuple(one.name for one in self._decoded().cdi_devices)
