"""Regions of older in-container libraries: version 0 (HAMi up to 2.4.0) and the odd 1.1 of HAMi 2.8.1.

Version 1.1 of the other releases has the offsets of version 1.2 (`layout.Region`). The odd one says 1.1 as well: only
the size of its file tells (spec/node 6.3, trap T-34).
"""

from __future__ import annotations

import ctypes

from hami.shim.elements import MAX_DEVICES, MAX_SLOTS, UUID_LENGTH, Usage, Utilization


class OddSlot(ctypes.LittleEndianStructure):
    """One process, version 1.1 of HAMi 2.8.1."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("host_pid", ctypes.c_int32),
        ("sequence", ctypes.c_uint64),
        ("used", Usage * MAX_DEVICES),
        ("monitor_used", ctypes.c_uint64 * MAX_DEVICES),
        ("utilization", Utilization * MAX_DEVICES),
        ("status", ctypes.c_int32),
        ("padding", ctypes.c_int32),
        ("unused", ctypes.c_uint64 * 2),
    )


class OddRegion(ctypes.LittleEndianStructure):
    """The whole file, version 1.1 of HAMi 2.8.1."""

    _fields_ = (
        ("initialized", ctypes.c_int32),
        ("major_version", ctypes.c_uint32),
        ("minor_version", ctypes.c_uint32),
        ("sm_init", ctypes.c_int32),
        ("owner_pid", ctypes.c_uint64),
        ("semaphore", ctypes.c_uint64 * 4),
        ("post_init_semaphore", ctypes.c_uint64 * 4),
        ("device_count", ctypes.c_uint64),
        ("uuid", (ctypes.c_char * UUID_LENGTH) * MAX_DEVICES),
        ("memory_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("core_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("procs", OddSlot * MAX_SLOTS),
        ("proc_count", ctypes.c_int32),
        ("utilization_switch", ctypes.c_int32),
        ("recent_kernel", ctypes.c_int32),
        ("priority", ctypes.c_int32),
        ("last_kernel_time", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 4),
    )


class V0Usage(ctypes.LittleEndianStructure):
    """Bytes one process holds on one card, version 0."""

    _fields_ = Usage._fields_[:5]


class V0Utilization(ctypes.LittleEndianStructure):
    """Percent of one card that one process used, version 0."""

    _fields_ = Utilization._fields_[:3]


class V0Slot(ctypes.LittleEndianStructure):
    """One process, version 0."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("host_pid", ctypes.c_int32),
        ("used", V0Usage * MAX_DEVICES),
        ("monitor_used", ctypes.c_uint64 * MAX_DEVICES),
        ("utilization", V0Utilization * MAX_DEVICES),
        ("status", ctypes.c_int32),
        ("padding", ctypes.c_int32),
    )


class V0Region(ctypes.LittleEndianStructure):
    """The whole file, version 0. It has no version words and no time of the last kernel."""

    major_version = 0
    minor_version = 0
    last_kernel_time = 0
    _fields_ = (
        ("initialized", ctypes.c_int32),
        ("sm_init", ctypes.c_int32),
        ("owner_pid", ctypes.c_uint64),
        ("semaphore", ctypes.c_uint64 * 4),
        ("device_count", ctypes.c_uint64),
        ("uuid", (ctypes.c_char * UUID_LENGTH) * MAX_DEVICES),
        ("memory_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("core_limit", ctypes.c_uint64 * MAX_DEVICES),
        ("procs", V0Slot * MAX_SLOTS),
        ("proc_count", ctypes.c_int32),
        ("utilization_switch", ctypes.c_int32),
        ("recent_kernel", ctypes.c_int32),
        ("priority", ctypes.c_int32),
    )


ODD_SIZE = ctypes.sizeof(OddRegion)
V0_SIZE = ctypes.sizeof(V0Region)
