"""CDI specifications: what a container runtime adds for each name that Allocate answers (spec/node 2.9, 10.3).

Pure: what there is on the host comes in through `HostDriver` and `CdiDevice`. Version 0.5.0 of the format is the newest
that every containerd with CDI reads, and the first that has names beginning with a digit and host paths of devices.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from hami.core.container_edits import DeviceNode, Mount
from hami.vendors.nvidia.names import ENV_VISIBLE_DEVICES

VENDOR: Final = "k8s.device-plugin.nvidia.com"
CDI_VERSION: Final = "0.5.0"
ALL: Final = "all"
_OLD_TOOL: Final = "nvidia-ctk"
"""NVIDIA's tool whose hooks are words after `hook`; its successor has them as words of its own."""
_NO_LEGACY_HOOK: Final = f"{ENV_VISIBLE_DEVICES}=void"
"""Keeps NVIDIA's older runtime hook from adding cards a second time."""
_SONAME_NUMBERS: Final = {"libnvidia-nvvm": 4}
"""Libraries whose soname ends in another number than 1."""
_MOUNT_OPTIONS: Final = ["ro", "nosuid", "nodev", "bind"]


class CdiClass(enum.StrEnum):
    """What a name before `=` stands for; one file each."""

    GPU = "gpu"
    GDRCOPY = "gdrcopy"
    GDS = "gds"
    MOFED = "mofed"


class CdiDevice(msgspec.Struct, frozen=True):
    """One thing that can be asked for, under each of its names."""

    names: tuple[str, ...]
    nodes: tuple[DeviceNode, ...]
    mounts: tuple[Mount, ...] = ()


class HostDriver(msgspec.Struct, frozen=True):
    """The driver on this host, the same for every card: control nodes, libraries and programs, and NVIDIA's hook tool.

    `library_folders` are folders of libraries as containers see them; an empty `hook_path` means that there is no tool,
    and each library is then also mounted under its soname.
    """

    nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    library_folders: tuple[str, ...] = ()
    hook_path: str = ""


def qualified(kind: CdiClass, name: str) -> str:
    """The name that kubelet hands to the runtime."""
    return f"{VENDOR}/{kind}={name}"


def file_name(kind: CdiClass) -> str:
    """Name of the specification's file; other generators of the same vendor use it too."""
    return f"{VENDOR}-{kind}.json"


def document(kind: CdiClass, devices: Sequence[CdiDevice], driver: HostDriver | None = None) -> bytes:
    """The specification as JSON. Every device needs a node or a mount: the format refuses empty ones."""
    entries = [
        {"name": name, "containerEdits": _edits(device.nodes, device.mounts)}
        for device in devices
        for name in device.names
    ]
    entries.append({"name": ALL, "containerEdits": _everything(devices)})
    common = {} if driver is None else {"containerEdits": _common(driver)}
    spec = {"cdiVersion": CDI_VERSION, "kind": f"{VENDOR}/{kind}", "devices": entries, **common}
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def _everything(devices: Iterable[CdiDevice]) -> dict[str, Any]:
    nodes = dict.fromkeys(node for device in devices for node in device.nodes)
    mounts = dict.fromkeys(mount for device in devices for mount in device.mounts)
    return _edits(nodes, mounts)


def _common(driver: HostDriver) -> dict[str, Any]:
    mounts = driver.mounts if driver.hook_path else (*driver.mounts, *_sonames(driver))
    edits = {"env": [_NO_LEGACY_HOOK], **_edits(driver.nodes, mounts)}
    if driver.hook_path and driver.library_folders:
        folders = [word for folder in driver.library_folders for word in ("--folder", folder)]
        edits["hooks"] = [_hook(driver.hook_path, "update-ldcache", *folders)]
    return edits


def _sonames(driver: HostDriver) -> Iterable[Mount]:
    """`libcuda.so.1` beside `libcuda.so.580.65.06`: what the hook's ldconfig would have linked."""
    for mount in driver.mounts:
        folder, _, name = mount.container_path.rpartition("/")
        if folder in driver.library_folders:
            stem = name.partition(".so.")[0]
            link = f"{folder}/{stem}.so.{_SONAME_NUMBERS.get(stem, 1)}"
            yield Mount(link, mount.host_path, read_only=True)


def _hook(path: str, name: str, *words: str) -> dict[str, Any]:
    tool = path.rpartition("/")[2]
    prefix = [tool, "hook"] if tool == _OLD_TOOL else [tool]
    return {"hookName": "createContainer", "path": path, "args": [*prefix, name, *words]}


def _edits(nodes: Iterable[DeviceNode], mounts: Iterable[Mount]) -> dict[str, Any]:
    edits: dict[str, Any] = {}
    if listed := [_node(each) for each in nodes]:
        edits["deviceNodes"] = listed
    if listed := [_mount(each) for each in mounts]:
        edits["mounts"] = listed
    return edits


def _node(node: DeviceNode) -> dict[str, str]:
    if node.host_path == node.container_path:
        return {"path": node.container_path}
    return {"path": node.container_path, "hostPath": node.host_path}


def _mount(mount: Mount) -> dict[str, Any]:
    options = _MOUNT_OPTIONS if mount.read_only else ["rw", "nosuid", "nodev", "bind"]
    return {"hostPath": mount.host_path, "containerPath": mount.container_path, "options": options}
