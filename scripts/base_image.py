"""The base of the images that tests build: Debian 12 with Python, made from Debian's packages, without a registry.

A release names its base by `--build-arg BASE=...`; this one stands in for it where no registry can be reached.
Kept in HAMI_CACHE/images under the packages' names; made once (35 s). Source: spec/cluster 4.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from scripts.buildah import Buildah, BuildahError, cache

SUITE: Final = "bookworm"
PACKAGES: Final = ("ca-certificates", "python3-minimal", "python3-venv")
_UNUSED: Final = (
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/doc/*/copyright",
)
_SOURCES: Final = Path("/etc/apt/sources.list.d/debian.sources")


def digest() -> str:
    """What the base is made of, as 12 hexadecimal digits."""
    return hashlib.sha256("\n".join((SUITE, *PACKAGES, *_UNUSED)).encode()).hexdigest()[:12]


def name() -> str:
    """Name of the base image in the store."""
    return f"localhost/hami-base:{digest()}"


def root_archive() -> Path:
    """A tar of the base's root file system, made if need be. Raises BuildahError when mmdebstrap fails."""
    archive = cache() / "images" / f"debian-{digest()}.tar"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / ".base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            part = archive.with_name(f"part-{archive.name}")
            command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
            command += [f"--dpkgopt={option}" for option in _UNUSED]
            command += [SUITE, str(part), *_mirrors()]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise BuildahError(f"mmdebstrap failed:\n{done.stderr[-2000:]}")
            part.replace(archive)
    return archive


def ensure(buildah: Buildah) -> str:
    """The base in the store; its name."""
    if not buildah.has(name()):
        with tempfile.TemporaryDirectory(dir=buildah.store) as folder:
            (Path(folder) / "base.tar").hardlink_to(root_archive())
            dockerfile = Path(folder) / "Dockerfile"
            dockerfile.write_text('FROM scratch\nADD base.tar /\nCMD ["/bin/sh"]\n')
            buildah.build(name(), Path(folder), dockerfile, {})
    return name()


def _mirrors() -> list[str]:
    """This machine's own sources where it runs the same Debian; mmdebstrap's defaults elsewhere."""
    release = Path("/etc/os-release")
    same = release.exists() and f"VERSION_CODENAME={SUITE}" in release.read_text() and _SOURCES.exists()
    return [str(_SOURCES)] if same else []


if __name__ == "__main__":
    sys.stdout.write(f"{root_archive()}\n")
