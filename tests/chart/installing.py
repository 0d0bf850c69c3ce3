"""The script that puts the shim on a node, run as its container does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.chart.rendering import ROOT

INIT = ROOT / "docker" / "vgpu-init.sh"


def install(source: Path, target: Path) -> None:
    subprocess.run(
        ["sh", str(INIT), str(target)],
        env={**os.environ, "VGPU_SOURCE": str(source)},
        check=True,
        stdout=subprocess.DEVNULL,
    )
