"""runc, CNI plugins and packet filters from Debian's packages, unpacked into `$HAMI_CACHE`.

    python -m tests.node.tools

Nothing is installed: packages are downloaded by apt with what they depend on and this machine lacks, and unpacked
into one folder, from which they run with `environment()`. A folder whose programs do not run is made anew.
Source: spec/cluster.md 1.
"""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.build import cache_root

NODE_PACKAGES = (
    "runc",
    "containernetworking-plugins",
    "iptables",
    "conntrack",
    "busybox-static",
)
BUILD_PACKAGES = ("buildah", "mmdebstrap")
"""What images are built with, for those who build some."""
XTABLES_NAMES = tuple(f"{family}{verb}" for family in ("iptables", "ip6tables") for verb in ("", "-save", "-restore"))
PROGRAMS = {
    "runc": ("runc", "--version"),
    "iptables": ("iptables", "--version"),
    "conntrack": ("conntrack", "--version"),
    "buildah": ("buildah", "--version"),
    "mmdebstrap": ("mmdebstrap", "--version"),
}
"""By package: a command that shows that its program finds its libraries."""
DEBIAN_PROGRAMS = ("apt-get", "dpkg", "dpkg-query")


class ToolsError(Exception):
    """The packages cannot be had here; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tools:
    """Unpacked packages: `root` is laid out like a machine's file system, `bin` has names that Debian links later."""

    folder: Path

    @property
    def root(self) -> Path:
        """Where the packages lie."""
        return self.folder / "root"

    @property
    def bin(self) -> Path:
        """Links that maintainer scripts would have made."""
        return self.folder / "bin"

    @property
    def cni_plugins(self) -> Path:
        """Folder of the CNI plugins."""
        return self.root / "usr/lib/cni"

    @property
    def busybox(self) -> Path:
        """A static busybox, for images that need no libraries."""
        return self.root / "bin/busybox"

    def program(self, name: str) -> Path:
        """Path of an unpacked program. Raises ToolsError when no package brought it."""
        for folder in self._program_folders():
            if os.access(folder / name, os.X_OK):
                return folder / name
        raise ToolsError(f"{name} is in none of {', '.join(map(str, self._program_folders()))}")

    def environment(self) -> dict[str, str]:
        """This process's environment, in which the tools and what they call are found first."""
        libraries = [self.root / folder / f"{platform.machine()}-linux-gnu" for folder in ("usr/lib", "lib")]
        path = os.pathsep.join([*map(str, self._program_folders()), os.environ.get("PATH", os.defpath)])
        return os.environ | {
            "PATH": path,
            "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
            "XTABLES_LIBDIR": str(libraries[0] / "xtables"),
            "PERL5LIB": str(self.root / "usr/share/perl5"),
        }

    def broken(self, packages: Sequence[str]) -> list[str]:
        """Packages whose program does not run from here."""
        return [package for package in packages if package in PROGRAMS and not self._runs(PROGRAMS[package])]

    def _runs(self, command: Sequence[str]) -> bool:
        try:
            full = [str(self.program(command[0])), *command[1:]]
            return subprocess.run(full, env=self.environment(), capture_output=True, check=False).returncode == 0
        except (ToolsError, OSError):
            return False

    def _program_folders(self) -> list[Path]:
        return [self.bin, *(self.root / name for name in ("usr/sbin", "usr/bin", "sbin", "bin"))]


def missing_prerequisite() -> str | None:
    """Why packages cannot be had here, in words for a person; None when they can."""
    absent = [name for name in DEBIAN_PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(absent)} not found: the node's tools come from Debian packages" if absent else None


def ensure(packages: Sequence[str] = NODE_PACKAGES) -> Tools:
    """The tools, downloaded first where they are missing. Raises ToolsError."""
    tools = Tools(cache_root() / "node-tools" / _digest(packages))
    tools.folder.parent.mkdir(parents=True, exist_ok=True)
    with (tools.folder.parent / f"{tools.folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not tools.folder.exists() or tools.broken(packages):
            reason = missing_prerequisite()
            if reason is not None:
                raise ToolsError(reason)
            _make(tools, packages)
    return tools


def _make(tools: Tools, packages: Sequence[str]) -> None:
    staging = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=tools.folder.parent))
    try:
        _unpack(staging, packages)
        shutil.rmtree(tools.folder, ignore_errors=True)
        staging.chmod(0o755)
        staging.rename(tools.folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    broken = tools.broken(packages)
    if broken:
        raise ToolsError(f"{', '.join(broken)} in {tools.folder} cannot be run")


def _unpack(folder: Path, packages: Sequence[str]) -> None:
    archives, root, links = folder / "archives", folder / "root", folder / "bin"
    (archives / "partial").mkdir(parents=True)
    links.mkdir()
    _download(archives, packages)
    for archive in sorted(archives.glob("*.deb")):
        _run("dpkg", "-x", str(archive), str(root))
    if (root / "usr/sbin/xtables-nft-multi").exists():
        for name in XTABLES_NAMES:
            (links / name).symlink_to("../root/usr/sbin/xtables-nft-multi")
    shutil.rmtree(archives)


def _download(archives: Path, packages: Sequence[str]) -> None:
    """The packages and what they need beyond what this machine has, whether or not they are installed here."""
    status = archives / "status"
    status.write_text(_status_without(set(packages)))
    options = [f"Dir::State::status={status}", f"Dir::Cache::archives={archives}/", "Debug::NoLocking=1"]
    options += ["Acquire::Retries=5", "APT::Sandbox::User=root", "Dir::Cache::pkgcache=", "Dir::Cache::srcpkgcache="]
    command = ["apt-get", "install", "--yes", "--quiet", "--download-only", "--no-install-recommends"]
    command += [f"--option={option}" for option in options] + list(packages)
    try:
        _run(*command)
    except ToolsError:
        _run("apt-get", "update", "--quiet")  # a clean machine has no lists, an old one has stale ones
        _run(*command)


def _status_without(packages: set[str]) -> str:
    paragraphs = Path("/var/lib/dpkg/status").read_text().split("\n\n")
    return "\n\n".join(one for one in paragraphs if one.partition("\n")[0].removeprefix("Package: ") not in packages)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolsError(f"{' '.join(command)}: {(done.stdout + done.stderr)[-1500:]}")


def _digest(packages: Sequence[str]) -> str:
    release = platform.freedesktop_os_release()
    facts = [release.get("ID", ""), release.get("VERSION_ID", ""), platform.machine(), *sorted(packages)]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{ensure().folder}\n")
    except ToolsError as error:
        sys.exit(str(error))
