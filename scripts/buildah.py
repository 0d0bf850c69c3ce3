"""buildah without a daemon: its own store under HAMI_CACHE, chroot isolation, the machine's network and CA bundle.

Works as root in a container without systemd. Source: spec/cluster 4.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

CA_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_POLICY: Final = '{"default":[{"type":"insecureAcceptAnything"}]}'
"""Everything in the store is made here or loaded by name; there is no signature to check."""
_PASSED_ON: Final = ("PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")


class BuildahError(Exception):
    """A build, or a tool for it, failed; the text has the end of its output."""


def cache() -> Path:
    """`$HAMI_CACHE`, by default `~/.cache/hami`."""
    return Path(os.environ.get("HAMI_CACHE") or "~/.cache/hami").expanduser()


def missing() -> str:
    """Why images cannot be built here; empty when they can."""
    lacks = [program for program in ("buildah", "mmdebstrap") if not shutil.which(program)]
    if lacks:
        return f"{' and '.join(lacks)} missing: Debian: apt-get install {' '.join(lacks)}"
    return "" if os.geteuid() == 0 else "images are built as root"


class Buildah:
    """One store of images and layers, and the commands on it."""

    def __init__(self, store: Path | None = None) -> None:
        self.store = store or cache() / "buildah"
        self.store.mkdir(parents=True, exist_ok=True)
        self._policy = self.store / "policy.json"
        self._policy.write_text(_POLICY)

    def run(self, *arguments: str) -> str:
        """Output of one command. Raises BuildahError with the end of what it printed."""
        places = [f"--root={self.store}/root", f"--runroot={self.store}/run", "--storage-driver=overlay"]
        temporary = self.store / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(temporary)}
        command = ["buildah", *places, *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            end = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
            raise BuildahError(f"buildah {' '.join(arguments)} failed:\n{end}")
        return done.stdout.strip()

    def has(self, name: str) -> bool:
        """True when the store holds an image of that name."""
        try:
            self.run("inspect", "--type=image", name)
        except BuildahError:
            return False
        return True

    def build(self, name: str, context: Path, dockerfile: Path, arguments: Mapping[str, str]) -> None:
        """`buildah bud` with layers kept, so that what did not change is not made again."""
        flags = ["--layers", "--network=host", f"--signature-policy={self._policy}", "--pull=never"]
        passed = {key: os.environ[key] for key in _PASSED_ON if os.environ.get(key)}
        if CA_BUNDLE.exists():
            flags.append(f"--volume={CA_BUNDLE}:{CA_BUNDLE}:ro")
            passed["PIP_CERT"] = str(CA_BUNDLE)
        flags += [f"--build-arg={key}={value}" for key, value in {**passed, **arguments}.items()]
        self.run("bud", *flags, f"--file={dockerfile}", f"--tag={name}", str(context))

    def save(self, name: str, archive: Path) -> None:
        """Write an image to an OCI archive that `ctr images import` reads; it appears whole or not at all."""
        part = archive.with_name(f"part-{archive.name}")
        part.unlink(missing_ok=True)
        flags = ["--disable-compression", f"--signature-policy={self._policy}"]
        self.run("push", *flags, name, f"oci-archive:{part}:{name}")
        part.replace(archive)

    def load(self, archive: Path) -> str:
        """Take an image from an OCI or docker archive into the store; its id."""
        kind = "docker-archive" if _is_docker_archive(archive) else "oci-archive"
        return self.run("pull", "--quiet", f"--signature-policy={self._policy}", f"{kind}:{archive}")


def _is_docker_archive(archive: Path) -> bool:
    done = subprocess.run(["tar", "--list", "--file", str(archive)], capture_output=True, text=True, check=False)
    return "manifest.json" in done.stdout.split()
