"""Programs that have nothing to do with a GPU start and end exactly as without the shim."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shim import harness

PYTHON = """
import ctypes, json, os, threading
try:
    ctypes.CDLL("libcuda.so.1")
    found = True
except OSError as error:
    found = "cannot open" in str(error)
libm = ctypes.CDLL("libm.so.6")
libm.cos.restype = ctypes.c_double
threads = [threading.Thread(target=lambda: ctypes.CDLL(None).getpid()) for _ in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
print(json.dumps([found, libm.cos(ctypes.c_double(0.0)), sorted(k for k in os.environ if k != "LD_PRELOAD")]))
"""
COMMANDS: dict[str, list[str]] = {
    "python": [sys.executable, "-c", PYTHON],
    "bash": ["bash", "-c", "a=$(echo one | tr o 0); for i in 1 2 3; do echo $a$i; done; (exit 3); echo $?"],
    "sh": ["sh", "-c", "true && cat /proc/self/comm"],
    "ls": ["ls", "/"],
    "env": ["env", "-i", "/bin/echo", "bare"],
    "failing": ["cat", "/no/such/file"],
    "perl": ["perl", "-e", "print 42"],
    "java": ["java", "-version"],
    "go": ["go", "version"],
    "node": ["node", "-e", "console.log(1)"],
}
BARE = {"PATH": os.environ.get("PATH", ""), "HOME": os.environ.get("HOME", "/")}


def _run(command: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_starts_as_before_without_a_driver(shim: Path, name: str, tmp_path: Path) -> None:
    command = COMMANDS[name]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed here")
    limits = {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "100m",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "no" / "region.cache"),
        "NVIDIA_VISIBLE_DEVICES": "GPU-00000000-1111-4222-8333-444444444444",
    }
    for env in (BARE, BARE | limits):
        assert _run(command, env | {"LD_PRELOAD": str(shim / "libvgpu.so")}) == _run(command, env)


def test_static_programs_run(shim: Path) -> None:
    static = harness.build_bystanders() / "hello-static"
    if not static.exists():
        pytest.skip("no static C library here")
    assert _run([str(static)], BARE | {"LD_PRELOAD": str(shim / "libvgpu.so")}) == (0, "hello\n", "")


@pytest.mark.parametrize("other", ["next_puts.so", "next_dlsym.so"])
@pytest.mark.parametrize("shim_first", [True, False])
def test_beside_another_preload_that_asks_for_the_next(shim: Path, shim_first: bool, other: str) -> None:
    """The caller of dlsym(RTLD_NEXT) must stay the caller (HAMi-core#279, #315, HAMi#2903)."""
    folder = harness.build_bystanders()
    libraries = [str(shim / "libvgpu.so"), str(folder / other)]
    order = libraries if shim_first else libraries[::-1]
    assert _run([str(folder / "hello")], BARE | {"LD_PRELOAD": ":".join(order)}) == (0, "hello\n", "")


def test_programs_of_the_driver_without_the_driver(fakes: Path, shim: Path) -> None:
    """The loader's message is the same: the shim neither brings nor hides a missing driver."""
    command = [str(fakes / "bin" / "test_alloc")]
    plain = _run(command, BARE)
    assert plain[0] != 0
    assert _run(command, BARE | {"LD_PRELOAD": str(shim / "libvgpu.so")}) == plain
