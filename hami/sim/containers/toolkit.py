"""What real containers need on this machine, or the sentence that says why there can be none."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami.core.errors import HamiError
from hami.sim.containers import build, rootfs
from hami.sim.containers.build import Say
from hami.sim.containers.rootfs import Bind

_AS_ROOT: Final = ("mount+pid", "mount")
_AS_USER: Final = ("user+mount+pid", "user+mount")
_PROBE_LIMIT_S: Final = 60.0


class ContainersUnavailableError(HamiError):
    """Containers cannot be real processes here; the text says why, as a clause without a full stop."""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """Built files, and how far this machine lets containers be apart (`mount`, `pid`, `user`, joined by `+`)."""

    shim: Path
    driver: Path
    programs: Path
    isolation: str


def prepare(cache: Path, say: Say) -> Toolkit:
    """Builds what is not built yet, into `cache`, and tries a container. Blocks for half a minute the first time.

    `say` gets a line before each step that takes long. Raises ContainersUnavailableError.
    """
    try:
        build.compiler()
        programs = build.build_guest(cache)
        driver = build.build_driver(cache, say)
        isolation = find_isolation(programs, driver)
        return Toolkit(build.build_shim(cache, say), driver, programs, isolation)
    except (build.BuildError, OSError) as error:
        raise ContainersUnavailableError(str(error)) from error


def find_isolation(programs: Path, driver: Path) -> str:
    """The furthest separation that works here. Raises ContainersUnavailableError with what the kernel said."""
    said = ""
    for mode in _AS_ROOT if os.geteuid() == 0 else _AS_USER:
        root = Path(tempfile.mkdtemp(prefix="hami-root-"))
        try:
            binds = rootfs.prepare(root, driver, programs)
            command = enter_command(programs, mode, root, binds, {}, [rootfs.GUEST, "1", "0"])
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_LIMIT_S, check=False)
        finally:
            shutil.rmtree(root, ignore_errors=True)
        if done.returncode == 0:
            return mode
        said = done.stderr.strip().replace("\n", " ") or f"exit status {done.returncode}"
    raise ContainersUnavailableError(f"this machine lets us have no namespaces ({said})")


def enter_command(
    programs: Path, mode: str, root: Path, binds: list[Bind], env: dict[str, str], program: list[str]
) -> list[str]:
    """The command line of `guest/enter.c`."""
    words = [word for bind in binds for word in ("ro" if bind.read_only else "rw", bind.source, bind.target)]
    words += ["proc"] if "pid" in mode else ["ro", "/proc", "/proc"]
    return [
        str(programs / "enter"), mode, str(root), *words,
        "--", *(f"{name}={value}" for name, value in env.items()), "--", *program,
    ]  # fmt: skip
