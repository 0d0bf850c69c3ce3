"""Commands for people, when what they say cannot be written: a full disk, a reader that has gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "vllm.yaml"


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    dump = tmp_path / "dump.json"
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "uid": "n1"}}
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [node]}))
    return [sys.executable, "-m", "hami.apps", "explain", "-f", str(EXAMPLE), "--dump", str(dump)]


def _run(command: list[str], stdout: int) -> tuple[int, str]:
    done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    return done.returncode, done.stderr


def test_answer(command: list[str]) -> None:
    """The control of those below: with a place to write to, the answer is no."""
    status, errors = _run(command, subprocess.DEVNULL)
    assert (status, errors) == (1, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_full_disk_is_one_line(command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        status, errors = _run(command, full.fileno())
    assert status == 1
    assert errors.strip().endswith("No space left on device")
    assert len(errors.splitlines()) == 1


def test_reader_gone_is_quiet(command: list[str]) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        status, errors = _run(command, theirs)
    finally:
        os.close(theirs)
    assert (status, errors) == (141, "")
