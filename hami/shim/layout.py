"""The shared region of a container (hami/shim/include/region.h) for Python readers.

The first 2,008,952 bytes are version 1.2 of the layout of HAMi; behind them lies our own state. Older layouts are read
as well. `read_region` copies the file once and never fails on what the bytes say: numbers are clamped, text is cut. A
test compares every offset with the C compiler (spec/shim.md section 5, spec/node 6.3, issue 9).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from hami.core.errors import HamiError
from hami.shim.elements import MAX_DEVICES as MAX_DEVICES
from hami.shim.elements import MAX_SLOTS as MAX_SLOTS
from hami.shim.elements import UUID_LENGTH as UUID_LENGTH
from hami.shim.elements import Usage as Usage
from hami.shim.elements import Utilization as Utilization
from hami.shim.old_layouts import ODD_SIZE, V0_SIZE, OddRegion, V0Region

MAGIC = 19920718
V1_SIZE = 2008952
KNOWN_MINORS = (1, 2)
TAIL_OFFSET = 2011136
TAIL_MAGIC = 0x4C494154554D4148
TAIL_VERSION = 1
LOCK_SLOT_BASE = 0x40000000
LOCK_INIT = LOCK_SLOT_BASE + MAX_SLOTS

SLOT_FREE, SLOT_RUNNING, SLOT_SUSPENDED = 0, 1, 2


class RegionError(HamiError):
    """The file is no region this code can read; the message says why."""


class Slot(ctypes.LittleEndianStructure):
    """One process."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("host_pid", ctypes.c_int32),
        ("used", Usage * MAX_DEVICES),
        ("monitor_used", ctypes.c_uint64 * MAX_DEVICES),
        ("utilization", Utilization * MAX_DEVICES),
        ("status", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("sequence", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 2),
    )


class Lock(ctypes.LittleEndianStructure):
    """Lock of one card: 0 free, else slot + 1 of the holder; top bit: somebody waits."""

    _fields_ = (("word", ctypes.c_uint32), ("pad", ctypes.c_uint32 * 15))


class CoreState(ctypes.LittleEndianStructure):
    """Room for compute limits of one card."""

    _fields_ = (("reserved", ctypes.c_uint64 * 16),)


class Tail(ctypes.LittleEndianStructure):
    """Our own state."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("size", ctypes.c_uint32),
        ("slot_high", ctypes.c_uint32),
        ("pad0", ctypes.c_uint32),
        ("joins", ctypes.c_uint64),
        ("configured_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("context_bytes", ctypes.c_uint64 * MAX_DEVICES),
        ("pad1", ctypes.c_uint8 * 32),
        ("lock", Lock * MAX_DEVICES),
        ("core", CoreState * MAX_DEVICES),
        ("slot_in_use", ctypes.c_uint8 * MAX_SLOTS),
    )


class Region(ctypes.LittleEndianStructure):
    """The whole file."""

    _fields_ = (
        ("initialized", ctypes.c_int32),
        ("major_version", ctypes.c_uint32),
        ("minor_version", ctypes.c_uint32),
        ("sm_init", ctypes.c_int32),
        ("owner_pid", ctypes.c_uint64),
        ("semaphore", ctypes.c_uint64 * 4),
        ("device_count", ctypes.c_uint64),
        ("uuid", (ctypes.c_char * UUID_LENGTH) * MAX_DEVICES),
        ("memory_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("core_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("procs", Slot * MAX_SLOTS),
        ("proc_count", ctypes.c_int32),
        ("utilization_switch", ctypes.c_int32),
        ("recent_kernel", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("last_kernel_time", ctypes.c_uint64),
        ("post_init_semaphore", ctypes.c_uint64 * 4),
        ("gap", ctypes.c_uint8 * (TAIL_OFFSET - V1_SIZE)),
        ("tail", Tail),
    )


REGION_SIZE = ctypes.sizeof(Region)


@dataclass(frozen=True, slots=True)
class CardUsage:
    """What one process holds of one card, and how much it kept the card busy."""

    context_bytes: int
    module_bytes: int
    data_bytes: int
    total_bytes: int
    sm_percent: int = 0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """One process of the container."""

    slot: int
    pid: int
    host_pid: int
    status: int
    cards: tuple[CardUsage, ...]


@dataclass(frozen=True, slots=True)
class CardState:
    """One card of the container. A limit of 0 bytes means none."""

    index: int
    uuid: str
    memory_limit_bytes: int
    core_limit_percent: int


@dataclass(frozen=True, slots=True)
class RegionState:
    """What a region says at one moment."""

    minor_version: int
    ours: bool
    cards: tuple[CardState, ...]
    processes: tuple[ProcessUsage, ...]
    priority: int
    utilization_switch: int
    recent_kernel: int
    last_kernel_time_s: int
    recent_kernel_offset: int
    """Where in the file a monitor writes it; the same for the switch."""
    utilization_switch_offset: int

    def used_bytes(self, card: int) -> int:
        """Sum over the processes, on one card."""
        return sum(process.cards[card].total_bytes for process in self.processes)


def slot_is_held(descriptor: int, slot: int) -> bool:
    """Does a living process hold this slot of a region that our shim made?

    The process holds a byte lock on an open file description, so the kernel drops it however the process ends. A slot
    counts as held where the kernel cannot tell.
    """
    query = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, LOCK_SLOT_BASE + slot, 1, 0)
    try:
        answer = fcntl.fcntl(descriptor, getattr(fcntl, "F_OFD_GETLK", 36), query)
    except OSError as error:
        if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS):
            return True
        raise
    return int(struct.unpack_from("h", answer)[0]) != fcntl.F_UNLCK


def _process(index: int, slot: Slot) -> ProcessUsage:
    cards = tuple(
        CardUsage(usage.context, usage.module, usage.data, usage.total, utilization.sm)
        for usage, utilization in zip(slot.used, slot.utilization, strict=True)
    )
    return ProcessUsage(index, slot.pid, slot.host_pid, slot.status, cards)


def _processes(region: Region, descriptor: int | None) -> tuple[ProcessUsage, ...]:
    found = []
    for index in range(min(max(region.proc_count, 0), MAX_SLOTS)):
        slot = region.procs[index]
        if slot.status == SLOT_FREE or (descriptor is not None and not slot_is_held(descriptor, index)):
            continue
        found.append(_process(index, slot))
    return tuple(found)


def _cards(region: Region) -> tuple[CardState, ...]:
    found = []
    for index in range(min(region.device_count, MAX_DEVICES)):
        uuid = bytes(region.uuid[index]).split(b"\0", 1)[0]
        # Other bytes are those of a region that is still being made (HAMi #1811): a label of them would be no card's.
        if uuid and uuid.isascii():
            found.append(CardState(index, uuid.decode(), region.memory_limit[index], region.core_limit[index]))
    return tuple(found)


def _overlay(data: bytearray, size: int) -> Region:
    """The structure over the bytes; all have the fields that are read here. Raises RegionError.

    `data` has REGION_SIZE bytes, zeros behind the `size` bytes of the file.
    """
    if size < 12:
        raise RegionError(f"{size} bytes are too few for a region")
    magic, major, minor = struct.unpack_from("<iII", data)
    if magic != MAGIC:
        raise RegionError(f"wrong magic number {magic}")
    old: ctypes.LittleEndianStructure
    if V0_SIZE <= size < V1_SIZE:
        old = V0Region.from_buffer(data)
        return cast(Region, old)
    if size < V1_SIZE:
        raise RegionError(f"{size} bytes are too few for a region")
    if major != 1 or minor not in KNOWN_MINORS:
        # Fields may lie elsewhere: numbers would be wrong, and a monitor would write into what is not its own.
        raise RegionError(f"layout version {major}.{minor} is not known")
    if minor == 1 and size in (ODD_SIZE, ODD_SIZE + 1):
        old = OddRegion.from_buffer(data)
        return cast(Region, old)
    return Region.from_buffer(data)


def _parse(data: bytearray, size: int, descriptor: int | None) -> RegionState:
    region = _overlay(data, size)
    kind = type(region)
    ours = kind is Region and bool(region.tail.magic == TAIL_MAGIC and region.tail.version == TAIL_VERSION)
    return RegionState(
        minor_version=region.minor_version,
        ours=ours,
        cards=_cards(region),
        processes=_processes(region, descriptor if ours else None),
        priority=region.priority,
        utilization_switch=region.utilization_switch,
        recent_kernel=region.recent_kernel,
        last_kernel_time_s=region.last_kernel_time,
        recent_kernel_offset=kind.recent_kernel.offset,
        utilization_switch_offset=kind.utilization_switch.offset,
    )


def parse_region(data: bytes) -> RegionState:
    """The state in the bytes of a region file; processes that were killed may still be listed.

    Raises: RegionError.
    """
    whole = bytearray(REGION_SIZE)
    size = min(len(data), REGION_SIZE)
    whole[:size] = data[:size]
    return _parse(whole, size, None)


def read_open_region(descriptor: int) -> RegionState:
    """As `read_region`, from an open file. Raises RegionError and OSError."""
    whole, size = bytearray(REGION_SIZE), 0
    with memoryview(whole) as view:
        while size < REGION_SIZE and (got := os.preadv(descriptor, [view[size:]], size)):
            size += got
    return _parse(whole, size, descriptor)


def read_region(path: Path) -> RegionState:
    """The state of a region file, without the processes of ours that are gone.

    Raises: RegionError for what is no region, also when the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return read_open_region(file.fileno())
    except OSError as error:
        raise RegionError(f"{path}: {error.strerror}") from error
