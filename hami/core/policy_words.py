"""Words of scheduling policies (spec/scheduler 2.1, 4.4, 4.5)."""

from __future__ import annotations

from typing import Final

BINPACK: Final = "binpack"
SPREAD: Final = "spread"
NUMA: Final = "numa"
MUTEX: Final = "mutex"
TOPOLOGY: Final = "topology-aware"

NODE_POLICIES: Final = (BINPACK, SPREAD)
DEVICE_POLICIES: Final = (BINPACK, MUTEX, NUMA, SPREAD, TOPOLOGY)
