"""The limiter compiled for arm64 (by zig, as no arm64 machine is at hand): same names, no newer C library needed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.shim import harness
from tests.shim.conftest import CLIENTS, absent
from tests.shim.glibc import OLDEST_GLIBC
from tests.shim.hooks import hooked


@pytest.fixture(scope="module")
def library() -> Path:
    if subprocess.run([CLIENTS, "-c", "import ziglang"], capture_output=True, check=False).returncode != 0:
        absent(f"{CLIENTS} has no ziglang; HAMI_SHIM_CLIENTS can name one that has")
    return harness.build_arm64(CLIENTS)


def _readelf(option: str, library: Path) -> str:
    return subprocess.run(["readelf", "-W", option, str(library)], capture_output=True, text=True, check=True).stdout


def test_is_for_arm64(library: Path) -> None:
    assert "AArch64" in _readelf("-h", library)


def test_exports_are_the_hooks_and_the_lookups(library: Path) -> None:
    rows = [line.split() for line in _readelf("--dyn-syms", library).splitlines()]
    defined = {row[7].split("@")[0] for row in rows if len(row) == 8 and row[4] == "GLOBAL" and row[6] != "UND"}
    assert defined - {"Name"} == hooked() | {"dlsym", "dlvsym"}


def test_runs_on_old_c_libraries(library: Path) -> None:
    found = {(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", _readelf("-V", library))}
    assert found
    assert max(found) <= OLDEST_GLIBC


def test_needs_no_driver(library: Path) -> None:
    assert not re.search(r"NEEDED.*(cuda|nvidia)", _readelf("-d", library))
