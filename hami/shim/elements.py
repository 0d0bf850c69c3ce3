"""What a region says of one card: equal in all layouts of version 1 (spec/node 6.3)."""

from __future__ import annotations

import ctypes

MAX_DEVICES = 16
MAX_SLOTS = 1024
UUID_LENGTH = 96


class Usage(ctypes.LittleEndianStructure):
    """Bytes one process holds on one card."""

    _fields_ = (
        ("context", ctypes.c_uint64),
        ("module", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        ("offset", ctypes.c_uint64),
        ("total", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 3),
    )


class Utilization(ctypes.LittleEndianStructure):
    """Percent of one card that one process used."""

    _fields_ = (
        ("decoder", ctypes.c_uint64),
        ("encoder", ctypes.c_uint64),
        ("sm", ctypes.c_uint64),
        ("unused", ctypes.c_uint64 * 3),
    )
