"""A container's root folder: the machine's programs read-only, `/usr/local`, `/etc` and `/tmp` of its own, the driver.

The driver's libraries stand in `/usr/lib` (and `/usr/lib64` where that is a folder), where the container toolkit of a
GPU node puts them. All of it is links and empty folders; what is not, is bind-mounted when the container starts.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final, NamedTuple

GUEST: Final = "/opt/guest/gpu-fill"
CARDS_FOLDER: Final = "/run/fake-gpu"
"""Where the stand-in driver finds its description of the cards (tests/shim/fake/card.h)."""
MACHINE_PROC: Final = "/run/fake-gpu-proc"
"""The machine's procfs: a driver knows processes by their numbers on the machine."""
_MACHINE: Final = "/run/machine"
_TOP: Final = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_LIBRARY_FOLDERS: Final = ("lib", "lib64")
_OWN_IN_USR: Final = ("local",)
_ETC: Final = {
    "passwd": "root:x:0:0:root:/tmp:/bin/sh\n",
    "group": "root:x:0:\n",
    "hosts": "127.0.0.1 localhost\n",
}


class Bind(NamedTuple):
    """One bind mount of a container."""

    source: str
    target: str
    read_only: bool = True


def prepare(root: Path, driver: Path | None, programs: Path) -> list[Bind]:
    """Fills the empty folder `root` and returns the mounts that complete it. Raises OSError."""
    binds = [Bind("/dev", "/dev"), Bind(str(programs), str(Path(GUEST).parent)), Bind("/proc", MACHINE_PROC)]
    for name in _TOP:
        machine = Path("/", name)
        if machine.is_symlink():
            (root / name).symlink_to(machine.readlink())
        elif machine.is_dir():
            binds.append(Bind(str(machine), f"{_MACHINE}/{name}"))
            _link_usr(root) if name == "usr" else (root / name).symlink_to(f"{_MACHINE}/{name}")
    for name in ("etc", "tmp", "run", "proc", "var/tmp", "usr/local"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name, text in _ETC.items():
        (root / "etc" / name).write_text(text)
    if driver is not None:
        _put_driver(root, driver)
    return binds


def _link_usr(root: Path) -> None:
    """`/usr` as a folder of links, so that `/usr/local` and the driver can be the container's own."""
    for entry in os.scandir("/usr"):
        if entry.name in _OWN_IN_USR:
            continue
        mine = root / "usr" / entry.name
        mine.parent.mkdir(exist_ok=True)
        if entry.name in _LIBRARY_FOLDERS and not entry.is_symlink():
            mine.mkdir()
            for library in os.scandir(entry.path):
                (mine / library.name).symlink_to(f"{_MACHINE}{library.path}")
        else:
            mine.symlink_to(f"{_MACHINE}{entry.path}")


def _put_driver(root: Path, driver: Path) -> None:
    for folder in (root / "usr" / name for name in _LIBRARY_FOLDERS):
        if folder.is_dir() and not folder.is_symlink():
            for library in driver.glob("*.so.1"):
                (folder / library.name).unlink(missing_ok=True)
                shutil.copy2(library, folder)
