"""clang-tidy and cppcheck find nothing in the limiter's sources. Both come from requirements/shim-clients.lock."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.shim.conftest import CLIENTS, absent
from tests.shim.harness import SHIM_SOURCES

SOURCES = sorted(str(source) for source in (SHIM_SOURCES / "src").glob("*.c"))
FLAGS = ["-std=c11", "-D_GNU_SOURCE", f"-I{SHIM_SOURCES / 'include'}", f"-I{SHIM_SOURCES / 'src'}"]
CPPCHECK = ["--enable=warning,performance,portability", "--error-exitcode=1", "--quiet", "--inline-suppr", "--std=c11"]
PLANTED = """
#include <stdlib.h>
int after_free(void) {
    int *place = malloc(sizeof *place);
    free(place);
    *place = 1;
    return *place;
}
"""


def _tool(name: str) -> str:
    path = Path(CLIENTS).parent / name
    if not path.exists():
        absent(f"{name} is not beside {CLIENTS}; HAMI_SHIM_CLIENTS can name a Python that has it")
    return str(path)


def _clang_tidy(*sources: str) -> list[str]:
    config = f"--config-file={SHIM_SOURCES / '.clang-tidy'}"
    return [_tool("clang-tidy"), "--quiet", config, *sources, "--", *FLAGS]


def _cppcheck(*sources: str) -> list[str]:
    return [_tool("cppcheck"), *CPPCHECK, *(flag for flag in FLAGS if flag.startswith("-I")), *sources]


@pytest.mark.parametrize("command", [_clang_tidy, _cppcheck], ids=["clang-tidy", "cppcheck"])
def test_nothing_is_found(command: object, tmp_path: Path) -> None:
    assert callable(command)
    found = subprocess.run(command(*SOURCES), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-2000:]
    planted = tmp_path / "planted.c"  # negative control: a use after free is seen
    planted.write_text(PLANTED)
    assert subprocess.run(command(str(planted)), capture_output=True, check=False).returncode != 0
