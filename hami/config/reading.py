"""Configuration files read from a path that an operator gave: it may be anything, and a process must not hang on it."""

from __future__ import annotations

import errno
import os
import select
import stat
from pathlib import Path
from typing import Final

PIPE_LIMIT_S: Final = 10.0
"""How long the writer of a pipe (`<(…)`, /dev/stdin) may take to begin."""
MOST_BYTES: Final = 64 * 1024 * 1024


def read_bytes(path: Path, *, pipe_limit_s: float = PIPE_LIMIT_S, most_bytes: int = MOST_BYTES) -> bytes:
    """The whole file. Raises OSError, also for a pipe that nobody writes to and for what does not end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if stat.S_ISFIFO(os.fstat(handle).st_mode) and not select.select([handle], [], [], pipe_limit_s)[0]:
            raise OSError(errno.ETIMEDOUT, f"a pipe that nobody wrote to within {pipe_limit_s:g} s", str(path))
        os.set_blocking(handle, True)
        found = file.read(most_bytes + 1)
    if len(found) > most_bytes:
        raise OSError(errno.EFBIG, f"more than {most_bytes} bytes", str(path))
    return found
