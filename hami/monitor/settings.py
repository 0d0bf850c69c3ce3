"""What one monitor is told. Defaults are upstream's (spec/node 6.1, 6.2)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from hami.vendors.nvidia.folders import HOOK_PATH, VGPU


class MonitorSettings(msgspec.Struct, frozen=True):
    """One node's monitor."""

    node_name: str
    vgpu_dir: Path = Path(HOOK_PATH) / VGPU
    """The folder with `containers/` and `limits/`."""
    look_interval_s: float = 5.0
    """How often folders are looked at and feedback is given."""
    grace_s: float = 300.0
    """A folder without a pod goes when it is that old and has been without one for that long."""
    legacy_metrics: bool = False
