"""Files on the host that containers of a pod see: made before kubelet starts the container (spec/node 2.10).

Containers run as any user, hence the open modes; they are set by chmod because the process's umask would cut them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hami.vendors.nvidia.folders import CONTAINERS, LIMITS, folder_name

_OPEN_MODE: Final = 0o777
_OPEN_FILE_MODE: Final = 0o666


def container_dir(vgpu_dir: Path, pod_uid: str, container: str) -> Path:
    """The folder of one container: `containers/<podUID>_<containerName>`. Raises ValueError for names with a slash."""
    return vgpu_dir / CONTAINERS / folder_name(pod_uid, container)


def limits_file(vgpu_dir: Path, name: str) -> Path:
    """The file with the limits of the container whose folder has this name.

    Not in that folder: containers may write there, and the file would be theirs.
    """
    return vgpu_dir / LIMITS / name


def prepare_container_dir(folder: Path, lock_dir: Path, region: str = "") -> None:
    """Makes the container's folder anew and empty, and the lock folder if it is missing. Raises OSError.

    `region`: name of the region file, made empty for the container to fill.

    The old folder is renamed before it is removed, so that nobody sees it half empty.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(folder):
        trash = Path(tempfile.mkdtemp(prefix=".old-", dir=folder.parent))
        folder.rename(trash / folder.name)
        shutil.rmtree(trash)
    folder.mkdir()
    if region:
        # Before the folder is open to all: nobody can have put a link there.
        (folder / region).touch()
        (folder / region).chmod(_OPEN_FILE_MODE)
    folder.chmod(_OPEN_MODE)
    lock_dir.mkdir(parents=True, exist_ok=True)
    _open_to_all(lock_dir)


def _open_to_all(folder: Path) -> None:
    """Changes the folder itself: everybody may put a link in its place while it is missing, for it lies in /tmp."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(handle, _OPEN_MODE)
    finally:
        os.close(handle)


def write_atomically(path: Path, content: bytes, mode: int) -> None:
    """Writes a file so that every reader sees the old or the new content, also after a power cut. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise


def orphaned_dirs(vgpu_dir: Path, live_pod_uids: frozenset[str]) -> frozenset[str]:
    """Names of containers with a folder or limits here whose pod is not among `live_pod_uids`. Raises OSError."""
    folders = [entry for entry in _entries(vgpu_dir / CONTAINERS) if entry.is_dir()]
    names = [entry.name for entry in (*folders, *_entries(vgpu_dir / LIMITS))]
    return frozenset(name for name in names if name.partition("_")[0] not in live_pod_uids)


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def remove_dirs(vgpu_dir: Path, names: Iterable[str]) -> None:
    """Removes container folders and limits; what cannot be removed is left for the next time."""
    for name in names:
        shutil.rmtree(vgpu_dir / CONTAINERS / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            limits_file(vgpu_dir, name).unlink()
