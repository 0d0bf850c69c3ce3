"""`make images`: builds the images into OCI archives under HAMI_CACHE/images, each named after what it is made of.

    python -m scripts.images [NAME...]     # hami-scheduler hami-device-plugin kube-scheduler; all by default

A second run with unchanged sources only looks. The base is scripts/base_image.py unless BASE names another image that
the store holds (`buildah pull`). kube-scheduler is made from the binary that tests/cluster/build.py compiles.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hami import __version__
from scripts import base_image
from scripts.buildah import Buildah, BuildahError, cache, provide
from tests.cluster import build as control_plane

ROOT: Final = Path(__file__).resolve().parent.parent
_COMMON: Final = ("hami", "docker/install-packages.sh", "requirements/runtime.lock", "LICENSE")
SOURCES: Final = {
    "hami-scheduler": ("Dockerfile.scheduler", *_COMMON),
    "hami-device-plugin": (
        "Dockerfile.plugin",
        *_COMMON,
        "docker/vgpu-init.sh",
        "docker/clean-node.sh",
        "requirements/build.lock",
    ),
}
"""Our images: the Dockerfile first, then everything that it copies."""


@dataclass(frozen=True, slots=True)
class Image:
    """One built image: its name and tag inside the archive, and what it weighs in MB, unpacked."""

    reference: str
    archive: Path
    megabytes: float


def content(name: str, base: str) -> str:
    """Digest of everything that an image of ours is made of: 12 hexadecimal digits."""
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *SOURCES[name]],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\0")
    found = hashlib.sha256(f"{base} {__version__}".encode())
    for file in sorted(path for path in files if path and (ROOT / path).is_file()):
        mode = os.access(ROOT / file, os.X_OK)
        found.update(f"{file} {mode} ".encode() + hashlib.sha256((ROOT / file).read_bytes()).digest())
    return found.hexdigest()[:12]


def ensure(name: str) -> Image:
    """One image, built if need be. Raises BuildahError, or ValueError for a name that is none of ours."""
    if name == "kube-scheduler":
        return _kube_scheduler()
    if name not in SOURCES:
        raise ValueError(f"no image {name!r}: there are {', '.join((*SOURCES, 'kube-scheduler'))}")
    base = os.environ.get("BASE") or base_image.name()
    reference = f"localhost/{name}:{__version__}"
    return archived(name, content(name, base), reference, lambda buildah: _build(buildah, name, reference))


def archived(name: str, digest: str, reference: str, build: Callable[[Buildah], None]) -> Image:
    """The archive of that content; `build` makes the image in the store when there is none yet."""
    archive = cache() / "images" / f"{name}-{digest}.tar"
    size = archive.with_suffix(".megabytes")
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (archive.parent / ".build.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (archive.exists() and size.exists()):
            buildah = Buildah()
            build(buildah)
            for old in archive.parent.glob(f"{name}-*"):
                old.unlink()
            size.write_text(f"{image_megabytes(buildah, reference):.1f}")
            buildah.save(reference, archive)
    return Image(reference, archive, float(size.read_text()))


def image_megabytes(buildah: Buildah, reference: str) -> float:
    """Size of an image, its layers unpacked, in MB."""
    text = buildah.run("images", "--format={{.Size}}", reference).split("\n")[0]
    number, unit = text.split()
    return float(number) * {"B": 1e-6, "KB": 1e-3, "MB": 1.0, "GB": 1e3}[unit.upper()]


def _build(buildah: Buildah, name: str, reference: str) -> None:
    base = os.environ.get("BASE") or base_image.ensure(buildah)
    build_base = os.environ.get("BUILD_BASE") or base
    buildah.build(reference, ROOT, ROOT / SOURCES[name][0], {"BASE": base, "BUILD_BASE": build_base})


def _kube_scheduler() -> Image:
    """One file on nothing, under the name and tag that the chart asks for."""
    binaries = control_plane.ensure()
    reference = f"localhost/kube-scheduler:v{binaries.kubernetes_version}"

    def build(buildah: Buildah) -> None:
        with tempfile.TemporaryDirectory(dir=buildah.store) as folder:
            shutil.copy(binaries.path("kube-scheduler"), Path(folder) / "kube-scheduler")
            dockerfile = Path(folder) / "Dockerfile"
            dockerfile.write_text(
                "FROM scratch\nCOPY kube-scheduler /usr/local/bin/kube-scheduler\nENV PATH=/usr/local/bin\n"
                'USER 65532:65532\nENTRYPOINT ["kube-scheduler"]\n'
            )
            buildah.build(reference, Path(folder), dockerfile, {})

    return archived("kube-scheduler", binaries.folder.name.rpartition("-")[2], reference, build)


def main(names: Sequence[str]) -> int:
    """Builds and prints a table: seconds, MB unpacked, MB over the base, archive."""
    try:
        provide()
        print(f"{'image':<40} {'s':>6} {'MB':>7} {'over base':>9}  archive")
        base = image_megabytes(Buildah(), base_image.ensure(Buildah()))
        for name in names or (*SOURCES, "kube-scheduler"):
            started = time.monotonic()
            image = ensure(name)
            over = f"{image.megabytes - base:.0f}" if name in SOURCES else "-"
            seconds = time.monotonic() - started
            print(
                f"{image.reference:<40} {seconds:>6.1f} {image.megabytes:>7.0f} {over:>9}  {image.archive}", flush=True
            )
    except (BuildahError, ValueError, control_plane.BuildError) as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
