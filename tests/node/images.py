"""OCI archives made from files alone: no registry, no daemon, no root file system of a distribution.

`pack` writes one layer with the given files; `with_libraries` adds the shared libraries that programs need, so that a
dynamically linked program of this machine (Python, the limiter's tools) runs in an image of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import platform
import re
import subprocess
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

BUSYBOX = "localhost/busybox:1"
"""Image of the tests' own pods: a shell and small tools, statically linked."""
PAUSE = "localhost/pause:1"
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar"
BUSYBOX_NAMES = ("sh", "sleep", "env", "cat", "ls", "test", "true", "mount", "id", "head", "grep", "nc", "nslookup")
FOREVER = ("/bin/sleep", "2147483647")


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """What an image holds: files by their path inside it, links, and how it starts."""

    name: str
    files: Mapping[str, Path]
    links: Mapping[str, str] = dataclasses.field(default_factory=dict)
    command: Sequence[str] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)


def busybox(program: Path) -> Image:
    """Shell and tools; runs until killed unless a pod says otherwise."""
    links = {f"/bin/{name}": "/bin/busybox" for name in BUSYBOX_NAMES}
    return Image(BUSYBOX, {"/bin/busybox": program}, links, FOREVER)


def pause(program: Path) -> Image:
    """The sandbox's only process: it sleeps. The runtime ends it by SIGKILL, and nobody else lives there."""
    return Image(PAUSE, {"/bin/busybox": program}, {"/bin/sleep": "/bin/busybox"}, FOREVER)


def pack(image: Image, archive: Path) -> Path:
    """Write the image as an OCI archive, by one rename; the same content gives the same bytes."""
    layer = _layer(image)
    configuration = _json(
        {
            "created": "1970-01-01T00:00:00Z",
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {
                "Env": [f"PATH={SEARCH_PATH}", *(f"{key}={value}" for key, value in image.environment.items())],
                "Cmd": list(image.command),
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", configuration),
            "layers": [_descriptor(LAYER_TYPE, layer)],
        }
    )
    names = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
    }
    index = _json(
        {
            "schemaVersion": 2,
            "manifests": [_descriptor("application/vnd.oci.image.manifest.v1+json", manifest) | {"annotations": names}],
        }
    )
    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f"{archive.name}.part")
    with tarfile.open(part, "w") as tar:
        _add(tar, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(tar, "index.json", index)
        for blob in (configuration, manifest, layer):
            _add(tar, f"blobs/sha256/{_digest(blob).partition(':')[2]}", blob)
    part.replace(archive)
    return archive


def with_libraries(programs: Iterable[Path]) -> dict[str, Path]:
    """Shared libraries and loaders that these programs and libraries need, by the path under which they are sought."""
    found: dict[str, Path] = {}
    for program in programs:
        listed = subprocess.run(["ldd", str(program)], capture_output=True, text=True, check=False).stdout
        for path in re.findall(r"(?:=> )?(/\S+) \(0x", listed):
            found[path] = Path(path)
    return found


def tree(folder: Path, inside: str, skip: Sequence[str] = ("__pycache__",)) -> dict[str, Path]:
    """All files below a folder, by their path inside the image; folders of the names in `skip` are left out."""
    files: dict[str, Path] = {}
    for current, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - set(skip))
        for name in sorted(names):
            path = Path(current) / name
            files[f"{inside}/{path.relative_to(folder)}"] = path
    return files


def _layer(image: Image) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        made: set[Path] = set()
        _make_folders(tar, Path("/tmp"), made)
        _make_folders(tar, Path("/etc"), made)
        _add(tar, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
        _add(tar, "etc/group", b"root:x:0:\nnogroup:x:65534:\n")
        for inside, path in sorted(image.files.items()):
            _make_folders(tar, Path(inside).parent, made)
            executable = path.stat().st_mode & 0o111
            _add(tar, inside.lstrip("/"), path.read_bytes(), 0o755 if executable else 0o644)
        for inside, target in sorted(image.links.items()):
            _make_folders(tar, Path(inside).parent, made)
            link = tarfile.TarInfo(inside.lstrip("/"))
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
    return buffer.getvalue()


def _make_folders(tar: tarfile.TarFile, folder: Path, made: set[Path]) -> None:
    for one in reversed([folder, *folder.parents]):
        if one != Path("/") and one not in made:
            made.add(one)
            entry = tarfile.TarInfo(str(one).lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if one == Path("/tmp") else 0o755
            tar.addfile(entry)


def _add(tar: tarfile.TarFile, name: str, content: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
