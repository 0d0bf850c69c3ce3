"""Opens, reads and writes the shared region of one container.

The container owns every byte of its folder, so nothing in it is trusted: no link is followed, nothing but a regular
file is opened, a file cut short while it is read is read short (a mapping would end this process by SIGBUS), and only
the two fields of the feedback are ever written.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hami.monitor.feedback import Feedback
from hami.shim.layout import RegionError, RegionState, read_open_region
from hami.vendors.nvidia.folders import CONTAINERS, LIMITS, REGION_SUFFIX
from hami.vendors.nvidia.names import ENV_SHARED_CACHE

_MOST_ENTRIES: Final = 1000
"""A folder is looked through no further: its container may fill it."""
_LARGEST_LIMITS_BYTES: Final = 65536


def region_path(vgpu_dir: Path, folder: str) -> Path | None:
    """The region of a container's folder, None before there is one (the plugin makes an empty file).

    The file with the limits names it, for containers can add files of their own. Without limits (made by upstream's
    plugin) it is the one `*.cache`. Raises RegionError where there are several, OSError.
    """
    home = vgpu_dir / CONTAINERS / folder
    named = limits_of(vgpu_dir, folder).get(ENV_SHARED_CACHE, "").rpartition("/")[2]
    if named:
        return _if_begun(home / named)
    with os.scandir(home) as entries:
        names = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES)]
    regions = sorted(name for name in names if name.endswith(REGION_SUFFIX))
    if len(regions) > 1:
        raise RegionError(f"{len(regions)} files are named *{REGION_SUFFIX}")
    return _if_begun(home / regions[0]) if regions else None


def _if_begun(path: Path) -> Path | None:
    try:
        return path if path.lstat().st_size else None
    except FileNotFoundError:
        return None


def limits_of(vgpu_dir: Path, folder: str) -> dict[str, str]:
    """The variables in the container's file with limits; empty without such a file. Raises OSError."""
    try:
        with (vgpu_dir / LIMITS / folder).open("rb") as file:
            text = file.read(_LARGEST_LIMITS_BYTES).decode("utf-8", "replace")
    except FileNotFoundError:
        return {}
    return {name: value for name, equals, value in (line.partition("=") for line in text.splitlines()) if equals}


def read(path: Path) -> RegionState:
    """The region as it is now. Raises RegionError, also for what cannot be opened."""
    with _opened(path, os.O_RDONLY) as descriptor:
        return read_open_region(descriptor)


def write(path: Path, state: RegionState, feedback: Feedback) -> None:
    """Writes recent kernel and utilisation switch where they differ from `state`. Raises RegionError.

    The file is looked at again: fields are written only where the region still is of the layout that was read.
    """
    changes = []
    if feedback.recent_kernel != state.recent_kernel:
        changes.append((state.recent_kernel_offset, feedback.recent_kernel))
    if feedback.utilization_switch != state.utilization_switch:
        changes.append((state.utilization_switch_offset, feedback.utilization_switch))
    if not changes:
        return
    with _opened(path, os.O_RDWR) as descriptor:
        now = read_open_region(descriptor)
        if (now.recent_kernel_offset, now.minor_version) != (state.recent_kernel_offset, state.minor_version):
            raise RegionError("the layout changed while it was looked at")
        for offset, value in changes:
            os.pwrite(descriptor, struct.pack("<i", value), offset)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    try:
        # Not blocking, for the container may put a pipe there.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise RegionError("no regular file")
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise RegionError(str(error.strerror)) from error
