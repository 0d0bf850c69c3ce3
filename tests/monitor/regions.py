"""Regions as files, written by the structures of the layouts."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from hami.shim import layout
from hami.shim.old_layouts import OddRegion, V0Region

MIB = 1024 * 1024
LAYOUTS: dict[str, tuple[type[ctypes.LittleEndianStructure], tuple[int, int] | None, int]] = {
    "v0": (V0Region, None, 1_197_897),
    "v1.1": (layout.Region, (1, 1), 2_008_953),
    "v1.1 odd": (OddRegion, (1, 1), 2_008_985),
    "v1.2": (layout.Region, (1, 2), 2_008_953),
    "ours": (layout.Region, (1, 2), layout.REGION_SIZE),
}
"""Structure, version words, size of the file (spec/node 6.3)."""


def region(
    kind: str = "v1.2",
    *,
    uuids: tuple[str, ...] = ("GPU-a",),
    limit_mib: int = 1000,
    core_limit: int = 30,
    processes: tuple[tuple[int, int, int, int, int], ...] = (),
    recent: int = 2,
    switch: int = 1,
    priority: int = 1,
    last_kernel_s: int = 0,
) -> bytes:
    """A region's file. `processes`: MiB of contexts, modules and data, percent of the SMs, and the slot's status."""
    structure, version, size = LAYOUTS[kind]
    made: Any = structure()
    made.initialized = layout.MAGIC
    if version is not None:
        made.major_version, made.minor_version = version
        made.last_kernel_time = last_kernel_s
    made.device_count = len(uuids)
    for index, uuid in enumerate(uuids):
        made.uuid[index].value = uuid.encode()
        made.memory_limit[index] = limit_mib * MIB
        made.core_limit[index] = core_limit
    made.proc_count = len(processes)
    for slot, (context, module, data, sm, status) in zip(made.procs, processes, strict=False):
        slot.pid, slot.status = 100, status
        used = slot.used[0]
        used.context, used.module, used.data = context * MIB, module * MIB, data * MIB
        used.total = used.context + used.module + used.data
        slot.utilization[0].sm = sm
    made.recent_kernel, made.utilization_switch, made.priority = recent, switch, priority
    if kind == "ours":
        made.tail.magic, made.tail.version = layout.TAIL_MAGIC, layout.TAIL_VERSION
    return bytes(made)[: size - 1].ljust(size, b"\0")


def container(vgpu_dir: Path, folder: str, content: bytes | None = None, *, name: str = "r.cache") -> Path:
    """A container's folder as plugin and runtime leave it, with a region if there is one; returns its path."""
    home = vgpu_dir / "containers" / folder
    home.mkdir(parents=True, exist_ok=True)
    (home / "libvgpu.so").touch()
    if content is not None:
        (home / name).write_bytes(content)
    return home / name
