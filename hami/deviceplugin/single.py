"""One plugin per node and resource: a file lock that ends with its process.

It lies in a folder of its own beside kubelet's sockets: kubelet removes files there when it starts, never folders,
and no container can reach it.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hami.core.errors import HamiError


class AnotherPluginError(HamiError):
    """Another device plugin serves this node and resource; the text says which, as far as can be told."""


class NodeLock:
    """Held from `acquire` to `release` or the process's end."""

    def __init__(self, kubelet_dir: Path, name: str) -> None:
        self.folder = kubelet_dir / "hami"
        self._path = self.folder / f"{name}.lock"
        self._file: int | None = None

    def acquire(self) -> None:
        """Takes the lock. Raises AnotherPluginError with the holder's pid, OSError if the folder cannot be made."""
        self.release()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(opened, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(opened)
            raise AnotherPluginError(
                f"another device plugin of hami (pid {holder}) serves this node: {self._path} is locked."
                " Stop one of the two"
            ) from error
        os.ftruncate(opened, 0)
        os.pwrite(opened, f"{os.getpid()}\n".encode("ascii"), 0)
        self._file = opened

    def release(self) -> None:
        """Gives the lock back; does nothing if it is not held."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
