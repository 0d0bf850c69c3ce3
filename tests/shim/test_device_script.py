"""tests/device/shim.py, the prepared script for a machine with a real GPU, run on the stand-in driver."""

from __future__ import annotations

import sys

from tests.shim.conftest import ContainerFactory
from tests.shim.container import card
from tests.shim.harness import HERE

SCRIPT = HERE.parent / "device" / "shim.py"


def test_passes_on_the_stand_in(container: ContainerFactory) -> None:
    box = container(limit_mib=None, cards=[card(0, memory_mib=16384, context_kib=300 * 1024)])
    none = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": None}
    done = box.run([sys.executable, str(SCRIPT), "--shim", str(box.shim / "libvgpu.so")], shim=False, extra=none)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout


def test_fails_when_the_shim_does_nothing(container: ContainerFactory) -> None:
    """Negative control: any other library in the shim's place is found out."""
    box = container(limit_mib=None)
    none = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": None}
    idle = box.machine.fakes / "driver" / "12.4" / "libnvidia-ml.so.1"
    done = box.run([sys.executable, str(SCRIPT), "--shim", str(idle)], shim=False, extra=none)
    assert done.returncode == 1
    assert "FAIL route cuMemAlloc" in done.stdout
