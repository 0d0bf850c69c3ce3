"""Device nodes and the driver's files as they lie on this host (spec/node 1.2, 2.9).

`root` is where a folder of the host is seen by this process; `host_root` is what the host calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from hami.core.container_edits import DeviceNode, Mount
from hami.nvml.probe import CardFacts
from hami.vendors.nvidia.cdi import CdiClass, CdiDevice, HostDriver

_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_WSL_NODE: Final = "dxg"
_LIBRARY_FOLDERS: Final = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
)
_PROGRAMS: Final = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_SOCKETS: Final = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_DRIVER: Final = "libcuda.so."
_FEATURE_NODES: Final = {
    CdiClass.GDRCOPY: ("gdrdrv",),
    CdiClass.GDS: ("nvidia-fs*",),
    CdiClass.MOFED: ("infiniband/uverbs*", "infiniband/rdma_cm"),
}
_FEATURE_FILES: Final = {CdiClass.GDS: ("etc/cufile.json", "run/udev")}


def control_nodes(dev_root: Path) -> tuple[DeviceNode, ...]:
    """Those that exist, in NVIDIA's order."""
    paths = (dev_root / "dev" / name for name in _CONTROL_NODES)
    return tuple(device_node(dev_root, path) for path in paths if path.exists())


def card_node(dev_root: Path, card: CardFacts) -> DeviceNode:
    """The card's own node, which is there whenever the driver has the card; under WSL all cards have one node."""
    own, shared = dev_root / "dev" / f"nvidia{card.minor}", dev_root / "dev" / _WSL_NODE
    return device_node(dev_root, shared if shared.exists() and not own.exists() else own)


def device_node(dev_root: Path, path: Path) -> DeviceNode:
    """A file under `dev_root`, without it in containers."""
    return DeviceNode(container_path=f"/{path.relative_to(dev_root)}", host_path=str(path))


def feature(kind: CdiClass, dev_root: Path) -> CdiDevice | None:
    """What a container gets of GPUDirect copies, storage or RDMA; None where the host has none of it."""
    dev = dev_root / "dev"
    nodes = tuple(device_node(dev_root, path) for name in _FEATURE_NODES[kind] for path in sorted(dev.glob(name)))
    if not nodes:
        return None
    files = [dev_root / name for name in _FEATURE_FILES.get(kind, ())]
    mounts = tuple(
        Mount(f"/{path.relative_to(dev_root)}", str(path), read_only=True) for path in files if path.exists()
    )
    return CdiDevice((), nodes, mounts)


def host_driver(root: Path, host_root: Path, dev_root: Path, hook_path: str) -> HostDriver:
    """The driver's libraries of one version, its programs and sockets. Without libraries `library_folders` is empty."""
    libraries = list(_libraries(root))
    programs = [root / "usr/bin" / name for name in _PROGRAMS]
    files = [*libraries, *(path for path in programs if path.is_file())]
    mounts = [_mount(root, host_root, path, read_only=True) for path in files]
    sockets = [root / name for name in _SOCKETS]
    mounts += [_mount(root, host_root, path, read_only=False) for path in sockets if path.exists()]
    folders = dict.fromkeys(f"/{path.parent.relative_to(root)}" for path in libraries)
    return HostDriver(control_nodes(dev_root), tuple(mounts), tuple(folders), hook_path)


def _libraries(root: Path) -> Iterator[Path]:
    """`lib*.so.<version>` of the version that libcuda has, from every folder that is not another's by a link."""
    seen: set[Path] = set()
    for name in _LIBRARY_FOLDERS:
        folder = root / name
        if not folder.is_dir() or folder.resolve() in seen:
            continue
        seen.add(folder.resolve())
        for version in _versions(folder):
            found = [*folder.glob(f"lib*.so.{version}"), *(folder / "vdpau").glob(f"lib*.so.{version}")]
            yield from sorted(path for path in found if path.is_file())


def _versions(folder: Path) -> Iterable[str]:
    """Versions of the driver in `folder`: `580.65.06` of `libcuda.so.580.65.06`, not the `1` of its link."""
    names = (path.name.removeprefix(_DRIVER) for path in folder.glob(f"{_DRIVER}*.*"))
    return sorted({name for name in names if name.replace(".", "").isdigit()})


def _mount(root: Path, host_root: Path, path: Path, *, read_only: bool) -> Mount:
    inside = path.relative_to(root)
    return Mount(f"/{inside}", str(host_root / inside), read_only=read_only)
