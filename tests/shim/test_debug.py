"""The shim can be debugged the way people do it today: gdb in batch, LD_DEBUG (docs/how-to/debug-the-shim.md)."""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests.shim import harness
from tests.shim.conftest import ContainerFactory, absent
from tests.shim.nvml_query import QUERY


def test_gdb_stops_in_our_memory_query(container: ContainerFactory) -> None:
    gdb = shutil.which("gdb")
    if gdb is None:
        absent("gdb is not installed here")
    box = container(limit_mib=100)
    box.shim = harness.build_shim("debug")
    script = [
        "set breakpoint pending on",
        f"set environment LD_PRELOAD {box.shim / 'libvgpu.so'}",
        "break nvmlDeviceGetMemoryInfo",
        "run",
        "backtrace",
        "kill",
    ]
    arguments = [part for line in script for part in ("-ex", line)]
    command = [gdb, "-nx", "-batch", *arguments, "--args", sys.executable, "-c", QUERY]
    done = subprocess.run(
        command, env=box.environment(shim=False), capture_output=True, text=True, timeout=120, check=False
    )
    assert "hook_nvml.c" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


def test_ld_debug_shows_the_order(container: ContainerFactory) -> None:
    """The shim is searched before the driver, and a linked program binds its calls to it."""
    done = container(limit_mib=100).run("test_alloc", 8, extra={"LD_DEBUG": "bindings"})
    bound = [line for line in done.stderr.splitlines() if "`cuMemAlloc_v2'" in line and "test_alloc" in line]
    assert bound
    assert all("libvgpu.so" in line for line in bound)
    without = container(limit_mib=100).run("test_alloc", 8, shim=False, extra={"LD_DEBUG": "bindings"})
    assert "libvgpu.so" not in without.stderr
