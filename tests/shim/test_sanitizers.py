"""The shim built with the address, undefined-behaviour and thread sanitizers, through the programs that use it most."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.shim import harness
from tests.shim.conftest import ContainerFactory, absent
from tests.shim.container import Container, card
from tests.shim.process_programs import ONE_PROCESS, REPLAYS, SEVERAL

RUNTIMES = {"address,undefined": "libasan.so", "thread": "libtsan.so"}
PROGRAMS = [
    *(("scenarios", (name,), 1024) for name in ONE_PROCESS),
    *(("processes", (name,), 100) for name in SEVERAL),
    *(("replays", (name,), 100) for name in REPLAYS),
    ("racer", (4, 100, 4 * 1024, 32), 128),
    ("roam", (1, 6, 4, 100, 1), 128),
    ("route_driver", (1024, 64), 1024),
]


def _runtime(name: str) -> str:
    """Path of a sanitizer's runtime, which has to be preloaded first."""
    compiler = harness.compiler()
    assert compiler is not None
    found = subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = Path(found.stdout.strip())
    if not path.is_absolute():
        absent(f"this compiler has no {name}")
    return str(path.resolve())


def _run(box: Container, program: str, arguments: tuple[object, ...], sanitizer: str) -> None:
    options = {
        "LD_PRELOAD": f"{_runtime(RUNTIMES[sanitizer])}:{box.shim / 'libvgpu.so'}",
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1",
    }
    done = box.run(program, *arguments, extra=options, timeout_s=120)
    for sign in ("ERROR: ", "WARNING: ", "runtime error"):
        assert sign not in done.stderr, done.stderr[:4000]
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("sanitizer", RUNTIMES)
def test_under_a_sanitizer(container: ContainerFactory, sanitizer: str) -> None:
    built = harness.build_shim("debugoptimized", sanitizer)
    cards = [card(0, context_kib=64 * 1024, module_kib=64 * 1024)]
    for program, arguments, limit_mib in PROGRAMS:
        box = container(limit_mib=limit_mib, cuda="13.5", cards=cards if program == "route_driver" else None)
        box.shim = built
        _run(box, program, arguments, sanitizer)
