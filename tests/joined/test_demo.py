"""`hami demo` with real containers: what it says, and that nothing of it is left, however it ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hami.sim.containers.toolkit import Toolkit

DEMO = [sys.executable, "-m", "hami.apps", "demo"]
LIMIT_S = 240


def guests(kit: Toolkit) -> set[int]:
    """Processes on this machine that run a program of the toolkit."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if command.startswith((bytes(kit.programs / "enter"), b"/opt/guest/gpu-fill\0")):
                found.add(int(entry.name))
    return found


def test_every_share_is_filled_and_refused_beyond(kit: Toolkit) -> None:
    before = guests(kit)
    done = subprocess.run([*DEMO, "--json"], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)["containers"]
    assert said["real"]
    assert said["sentence"] in done.stderr
    assert "share-one was refused beyond 3000 MiB" in said["sentence"]
    assert len(said["found"]) == 9
    assert all(one["refused"] and one["taken_mib"] == one["share_mib"] == one["limit_mib"] for one in said["found"])
    assert guests(kit) <= before


@pytest.fixture
def short_folder() -> Iterator[str]:
    """For what a killed process leaves behind; sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="hj-") as made:
        yield made


def test_a_killed_demo_takes_its_containers_with_it(kit: Toolkit, short_folder: str) -> None:
    before = guests(kit)
    process = subprocess.Popen(
        [*DEMO, "--serve"], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": short_folder}
    )
    try:
        assert process.stdout is not None
        assert any("still up" in line for line in process.stdout)
        assert len(guests(kit) - before) >= 9
    finally:
        children = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
        process.kill()
        process.wait()
        process.stdout and process.stdout.close()
        for child in children:  # scheduler and plugins have nobody to end them now
            with contextlib.suppress(OSError):
                if b"hami.apps" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(child, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while guests(kit) - before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
