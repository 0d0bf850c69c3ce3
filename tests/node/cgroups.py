"""A cgroup of our own in every hierarchy, under which kubelet makes its own: they go when the run ends.

Empty cgroups outlive the processes and namespaces that made them, so they are removed from outside.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from tests.cluster.processes import wait_until

REMOVAL_TIMEOUT_S = 20


def hierarchies() -> list[Path]:
    """Mount points of all cgroup hierarchies that have controllers (version 1) or are the unified one (version 2)."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")]


def create(name: str) -> None:
    """Make the cgroup everywhere; a cpuset without CPUs would take no process, so it gets its parent's."""
    for hierarchy in hierarchies():
        group = hierarchy / name
        group.mkdir(exist_ok=True)
        for file in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / file).exists() and (group / file).exists():
                (group / file).write_text((hierarchy / file).read_text())


def remove(name: str) -> None:
    """Remove the cgroup and all below; waits for processes that are about to be gone."""
    wait_until(lambda: _try_remove(name), REMOVAL_TIMEOUT_S, f"cgroup {name} removed")


def _try_remove(name: str) -> bool:
    left = [hierarchy / name for hierarchy in hierarchies() if (hierarchy / name).exists()]
    for top in left:
        for folder, _, _ in os.walk(top, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    return not any(top.exists() for top in left)
