"""A log that cannot be written: lines are lost, nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import structlog
from hami.obs import logs
logs.configure(3)
for number in range(2000):
    structlog.get_logger("test").warning("a line", number=number)
print("went on")
"""


def _run(stderr: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=120, check=False
    )


def test_every_line_is_written() -> None:
    """The control of those below."""
    done = _run(subprocess.PIPE)
    assert done.stdout == "went on\n"
    assert len(done.stderr.splitlines()) == 2000


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_loses_lines_and_nothing_else() -> None:
    with Path("/dev/full").open("w") as full:
        assert _run(full.fileno()).stdout == "went on\n"


def test_a_reader_that_has_gone_loses_lines_and_nothing_else() -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        assert _run(theirs).stdout == "went on\n"
    finally:
        os.close(theirs)
