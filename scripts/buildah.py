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

from tests.node import tools

CA_BUNDLE: Final = Path("/etc/ssl/certs/ca-certificates.crt")
_POLICY: Final = '{"default":[{"type":"insecureAcceptAnything"}]}'
"""Everything in the store is made here or loaded by name; there is no signature to check."""
_PASSED_ON: Final = ("PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")


class BuildahError(Exception):
    """A build, or a tool for it, failed; the text has the end of its output."""


def cache() -> Path:
    """`$HAMI_CACHE`, by default `~/.cache/hami`."""
    return Path(os.environ.get("HAMI_CACHE") or "~/.cache/hami").expanduser()


def provide() -> None:
    """Finds the tools that images are built with: the machine's, else unpacked from Debian packages into HAMI_CACHE.

    Raises BuildahError where neither can be had.
    """
    if os.geteuid() != 0:
        raise BuildahError("images are built as root")
    if not all(shutil.which(program) for program in tools.BUILD_PACKAGES):
        try:
            os.environ.update(tools.ensure(tools.BUILD_PACKAGES).environment())
        except tools.ToolsError as error:
            raise BuildahError(f"{' and '.join(tools.BUILD_PACKAGES)} are missing: {error}") from error


class Buildah:
    """One store of images and layers, and the commands on it."""

    def __init__(self, store: Path | None = None) -> None:
        self.store = store or cache() / "buildah"
        self.store.mkdir(parents=True, exist_ok=True)
        self.policy = self.store / "policy.json"
        """Which signatures are asked for: none."""
        self.policy.write_text(_POLICY)

    @property
    def command(self) -> list[str]:
        """buildah, with this store."""
        return ["buildah", f"--root={self.store}/root", f"--runroot={self.store}/run", "--storage-driver=overlay"]

    def run(self, *arguments: str) -> str:
        """Output of one command. Raises BuildahError with the end of what it printed."""
        temporary = self.store / "tmp"
        temporary.mkdir(exist_ok=True)
        environment = {**os.environ, "BUILDAH_ISOLATION": "chroot", "TMPDIR": str(temporary)}
        command = [*self.command, *arguments]
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
        flags = ["--layers", "--network=host", f"--signature-policy={self.policy}", "--pull=never"]
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
        flags = ["--disable-compression", f"--signature-policy={self.policy}"]
        self.run("push", *flags, name, f"oci-archive:{part}:{name}")
        part.replace(archive)
