"""Whether this machine has room for the demo: said before it starts, for later each part fails in its own words."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hami.core.errors import ConfigError

MIB: Final = 1024 * 1024
NODE_BYTES: Final = 16 * MIB
"""Logs, sockets and the containers' folders of a node; measured: 7 MiB with the tour's pods."""
NODE_FILES: Final = 64
"""Open files for each node, and once more for the rest; measured: 70 with three nodes."""
MOST_SOCKET_BYTES: Final = 107
"""Of a unix socket's path on Linux."""
_LONGEST_SOCKET: Final = "plugins/nvidia-gpu.sock"


def check(folder: Path, node_names: Sequence[str]) -> None:
    """Raises ConfigError that names what is short, what there is and what is needed."""
    longest = max((len(os.fsencode(folder / name / _LONGEST_SOCKET)) for name in node_names), default=0)
    if longest > MOST_SOCKET_BYTES:
        raise ConfigError(
            f"TMPDIR: sockets below {folder} have names of {longest} bytes, and a unix socket's has at most"
            f" {MOST_SOCKET_BYTES}: set TMPDIR to a shorter folder"
        )
    free, needed = shutil.disk_usage(folder).free, NODE_BYTES * len(node_names)
    if free < needed:
        raise ConfigError(
            f"TMPDIR: {folder.parent} has {free // MIB} MiB free, and {len(node_names)} nodes need {needed // MIB} MiB:"
            " make room, or set TMPDIR to another folder"
        )
    _allow_files(NODE_FILES * (len(node_names) + 1))


def _allow_files(needed: int) -> None:
    """Raises the limit of open files as far as this user may."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY in (now, most) or now >= needed:
        return
    if most < needed:
        raise ConfigError(f"ulimit -n: {most} open files are allowed, and the demo's nodes need {needed}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
