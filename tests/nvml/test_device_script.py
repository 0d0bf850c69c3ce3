"""tests/device/plugin.py, the prepared script for a machine with a real GPU, run over the stand-in driver."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shim.harness import build_fakes, compiler

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(compiler() is None, reason="needs a C compiler")


def run(folder: Path, cards: str, **environment: str) -> subprocess.CompletedProcess[str]:
    library = folder / "root/usr/lib64"
    library.mkdir(parents=True)
    (library / "libnvidia-ml.so.1").symlink_to(build_fakes() / "driver/12.4/libnvidia-ml.so.1")
    (folder / "root/dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1"):
        (folder / "root/dev" / name).touch()
    config = folder / "cards.conf"
    config.write_text(cards)
    command = [sys.executable, "-m", "tests.device.plugin"]
    roots = [f"--driver-root={folder / 'root'}", f"--dev-root={folder / 'root'}"]
    return subprocess.run(
        [*command, *roots],
        cwd=ROOT,
        env={"FAKE_GPU_CONFIG": str(config), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


TWO = "".join(
    f"card uuid=GPU-{index:08x}-0000-4000-8000-000000000000 memory_mib=81920 name=NVIDIA_A100-SXM4-80GB minor={index}\n"
    for index in range(2)
)


def test_passes_over_the_stand_in(tmp_path: Path) -> None:
    done = run(tmp_path, TWO)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("0 failed")
    assert "ok   the register is the driver's list" in done.stdout


def test_fails_without_a_driver(tmp_path: Path) -> None:
    """Negative control; code 9 is NVML_ERROR_DRIVER_NOT_LOADED."""
    done = run(tmp_path, TWO, FAKE_GPU_FAIL="nvmlInitWithFlags:0:9,nvmlInit_v2:0:9")
    assert done.returncode == 1
    assert "FAIL all checks were reached" in done.stdout


def test_fails_with_a_lost_card(tmp_path: Path) -> None:
    """Negative control; code 15 is NVML_ERROR_GPU_IS_LOST."""
    done = run(tmp_path, TWO, FAKE_GPU_FAIL="nvmlDeviceGetMemoryInfo:0:15")
    assert done.returncode == 1
    assert "FAIL cards are read" in done.stdout
