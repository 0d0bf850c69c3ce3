"""Server processes of the benchmark, pinned away from the load generator where there are two cores."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.bench.scenes import Scale


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: where it is, and what loading its cluster cost."""

    url: str
    cafile: str
    loaded_s: float = 0.0
    rss_mib: float = 0.0


def cores() -> tuple[int, int]:
    """Core of the load generator and of the servers; -1 where there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (-1, -1)


@contextlib.contextmanager
def server(target: str, scene: str, scale: Scale, seed: int, core: int, events_per_s: float = 0.0) -> Iterator[Server]:
    """A server process for the length of the block.

    Raises:
        RuntimeError: it ended before it served.
    """
    size = f"{scale.nodes}x{scale.cards}x{scale.pods}"
    command = [sys.executable, "-m", "tests.bench.serve", target, scene, size, str(seed), str(core), str(events_per_s)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the {target} server ended with {process.wait()} before it served")
        yield Server(**json.loads(line))
    finally:
        process.stdin.close()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
