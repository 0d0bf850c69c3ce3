"""The built library: what it exports, what it needs, and how old a C library may be."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.shim import harness
from tests.shim.conftest import ContainerFactory
from tests.shim.container import Container
from tests.shim.glibc import OLDEST_GLIBC
from tests.shim.hooks import hooked


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_exports_are_the_hooks_and_the_lookups(shim: Path) -> None:
    lines = _output("nm", "-D", "--defined-only", str(shim / "libvgpu.so")).splitlines()
    names = {line.split()[-1].split("@")[0] for line in lines}
    assert names == hooked() | {"dlsym", "dlvsym"}


def test_needs_no_driver(shim: Path) -> None:
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", _output("readelf", "-d", str(shim / "libvgpu.so"))))
    assert needed <= {"libc.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def _glibc_versions(path: Path) -> set[tuple[int, int]]:
    found = re.findall(r"GLIBC_(\d+)\.(\d+)", _output("readelf", "-V", str(path)))
    return {(int(major), int(minor)) for major, minor in found}


def test_runs_on_old_c_libraries(shim: Path) -> None:
    for name in ("libvgpu.so", "vgpu-info"):
        assert max(_glibc_versions(shim / name), default=OLDEST_GLIBC) <= OLDEST_GLIBC, name


def test_nothing_runs_at_load_time(shim: Path) -> None:
    """One entry: the compiler's own; constructors deadlocked loaders of graphics libraries."""
    size = re.search(r"INIT_ARRAYSZ\)\s+(\d+)", _output("readelf", "-d", str(shim / "libvgpu.so")))
    assert size is None or int(size[1]) <= 8


def test_no_text_relocations_and_no_executable_stack(shim: Path) -> None:
    assert "TEXTREL" not in _output("readelf", "-d", str(shim / "libvgpu.so"))
    stack = re.search(r"GNU_STACK\s+.*\n.*?\s(R\w*)\s", _output("readelf", "-l", str(shim / "libvgpu.so")))
    assert stack is not None
    assert "E" not in stack[1]


def test_library_is_small(shim: Path) -> None:
    _output("strip", "-o", str(shim / "stripped.so"), str(shim / "libvgpu.so"))
    assert (shim / "stripped.so").stat().st_size < 300 * 1024


def test_the_stand_in_driver_has_every_hooked_name() -> None:
    ours = {name for name in hooked() if name.startswith("cu")}
    assert ours <= {symbol for _, symbol, _, _ in harness.exports()}


def test_every_hook_is_called_by_a_test_program() -> None:
    programs = "".join(path.read_text() for path in (harness.HERE / "programs").glob("*.c"))
    assert [name for name in sorted(hooked()) if not re.search(rf"\b{name}\b", programs)] == []


def _private_kib(box: Container, *, shim: bool) -> int:
    """Memory that a process with one live block has for itself alone."""
    with box.holding(10, shim=shim) as holder:
        lines = Path(f"/proc/{holder.pid}/smaps_rollup").read_text().splitlines()
        # Not what is private and dirty: pages of a library that was just built are dirty until they are on the disk.
        (line,) = (line for line in lines if line.startswith("Anonymous:"))
        return int(line.split()[1])


def test_private_memory(container: ContainerFactory) -> None:
    """At most 300 KB a process (issue 9, "Speed"): the region is shared, the book starts empty."""
    box = container(limit_mib=100)
    _private_kib(box, shim=True)  # the first process fills the page cache and the region
    with_shim, without = (min(_private_kib(box, shim=shim) for _ in range(3)) for shim in (True, False))
    assert (with_shim - without) * 1024 <= 300_000, (with_shim, without)
