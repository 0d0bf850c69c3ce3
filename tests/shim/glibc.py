"""The oldest C library that libvgpu.so runs with."""

from __future__ import annotations

OLDEST_GLIBC = (2, 17)
