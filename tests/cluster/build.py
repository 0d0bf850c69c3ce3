"""Build the Kubernetes control plane from the Go module proxy, once, into `$HAMI_CACHE`.

The sources and their pinned versions are the two modules under `go/`: `hyper` (kube-apiserver,
kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl in one binary) and `etcd`. Their go.mod and
go.sum are the only place that names a version. A build lands in a folder named after a hash of those files, by one
rename, so an interrupted build leaves nothing half-made and a changed version never meets an old binary.

Cold this takes 7 to 10 minutes on two cores and 6 GB of Go caches; warm it is a stat. Source: spec/cluster.md 1.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent / "go"
COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
COLD_BUILD_BYTES = 8 << 30  # module cache 1 GB, build cache 5 GB, binaries, and room to breathe
PROGRESS_INTERVAL_S = 15.0
ATTEMPTS = 4
"""How often a build begins that ends because a module could not be fetched; what was fetched stays."""
PAUSE_S = 10.0
"""Between two of them."""
NETWORK_TROUBLE = re.compile(
    r"dial tcp|i/o timeout|connection reset|connection refused|unexpected EOF|TLS handshake|: (429|50\d) "
)


class BuildError(Exception):
    """The binaries cannot be built here; the text says what to install or free."""


@dataclasses.dataclass(frozen=True, slots=True)
class Binaries:
    """One finished build: a folder that holds every component under its own name."""

    folder: Path
    kubernetes_version: str
    etcd_version: str

    def path(self, name: str) -> Path:
        """Path of a component, for example `kube-apiserver`, `etcd` or `kubectl`."""
        return self.folder / name

    @property
    def complete(self) -> bool:
        """True when every component can be executed."""
        return all(os.access(self.path(name), os.X_OK) for name in (*COMPONENTS, "etcd"))


def cache_root() -> Path:
    """`$HAMI_CACHE`, by default `~/.cache/hami`: everything that is slow to build lies under it."""
    return Path(os.environ.get("HAMI_CACHE") or "~/.cache/hami").expanduser()


def pinned_version(module: str, requirement: str) -> str:
    """Version of `requirement` in the go.mod of `go/<module>`, without the leading v."""
    text = (SOURCES / module / "go.mod").read_text()
    found = re.search(rf"^(?:require)?\s*{re.escape(requirement)} v(\S+)", text, re.MULTILINE)
    if found is None:
        raise BuildError(f"go/{module}/go.mod does not require {requirement}")
    return found.group(1)


def expected() -> Binaries:
    """Where the build of the pinned sources lies, whether or not it exists yet."""
    digest = hashlib.sha256(platform.machine().encode())
    for file in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(file.relative_to(SOURCES).as_posix().encode() + b"\0" + file.read_bytes())
    kubernetes_version = pinned_version("hyper", "k8s.io/kubernetes")
    folder = cache_root() / "control-plane" / f"{kubernetes_version}-{digest.hexdigest()[:12]}"
    return Binaries(folder, kubernetes_version, pinned_version("etcd", "go.etcd.io/etcd/server/v3"))


def missing_prerequisite() -> str | None:
    """Why the control plane cannot be built here, in words for a person; None when it can or is built already."""
    if expected().complete:
        return None
    go = shutil.which("go")
    needed = max(_go_directive("hyper"), _go_directive("etcd"))
    if go is None:
        return f"Go {_dotted(needed)} or newer is not installed (go.dev/doc/install), and no finished build is cached"
    found = re.search(r"go(\d+)\.(\d+)", _output(go, "env", "GOVERSION"))
    if found is None or (int(found[1]), int(found[2])) < needed[:2]:
        return f"Go {_dotted(needed)} or newer is needed to build etcd and Kubernetes; found {found and found[0]}"
    return _disk_shortage(go)


def ensure(progress: bool = True) -> Binaries:
    """Return the finished build, building what is missing first.

    Only one process builds at a time; the others wait and then find it done.
    Raises BuildError when a prerequisite is missing or a compiler run fails.
    """
    target = expected()
    if target.complete:
        return target
    reason = missing_prerequisite()
    if reason is not None:
        raise BuildError(reason)
    with _only_one_build(cache_root(), progress):
        if not target.complete:
            _build(target, progress)
    return target


def _build(target: Binaries, progress: bool) -> None:
    target.folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".building-", dir=target.folder.parent))
    try:
        compile_module(SOURCES / "etcd", f"v{target.etcd_version}", staging, "-s -w", progress)
        flags = _version_flags(target.kubernetes_version)
        compile_module(SOURCES / "hyper", f"v{target.kubernetes_version}", staging, flags, progress)
        for name in COMPONENTS:
            (staging / name).symlink_to("hyper")
        if target.folder.exists():
            shutil.rmtree(target.folder)
        staging.rename(target.folder)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _version_flags(version: str) -> str:
    """Linker flags that make every component report the release; without them it is v0.0.0-master."""
    major, minor, _ = version.split(".", 2)
    facts = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return "-s -w " + " ".join(f"-X {package}.{name}={value}" for package in packages for name, value in facts.items())


def compile_module(
    source: Path, version: str, output: Path, ldflags: str, progress: bool, what: str = ".", tags: str = ""
) -> None:
    """Build the Go program in `source` into the folder `output`, under the name of its folder. Raises BuildError.

    `what` is a package, or `tool`: all programs that go.mod names as tools, each under its own name.
    """
    module = source.name
    command = ["go", "build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-tags", tags]
    command += ["-ldflags", ldflags, "-o", f"{output}/", what]
    before = set(output.iterdir())
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "", "GOWORK": "off"}
    started = time.monotonic()
    _say(progress, f"building {module} {version} from the Go module proxy")
    for attempts_left in reversed(range(ATTEMPTS)):
        code, lines = _go_build(command, source, environment, progress)
        if code == 0:
            break
        said = "".join(lines[-20:])
        if not attempts_left or not NETWORK_TROUBLE.search(said):
            raise BuildError(f"go build of {module} failed:\n{said}")
        _say(progress, f"  {module}: trying again after {lines[-1].strip()}")
        time.sleep(PAUSE_S)
    size_mb = sum(file.stat().st_size for file in set(output.iterdir()) - before) / 1e6
    _say(progress, f"built {module} {version} in {time.monotonic() - started:.0f} s, {size_mb:.0f} MB")


def _go_build(command: list[str], source: Path, environment: dict[str, str], progress: bool) -> tuple[int, list[str]]:
    """Exit code and what the compiler said."""
    started = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=source, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stderr is not None
        reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
        reader.start()
        try:
            while reader.is_alive():
                reader.join(PROGRESS_INTERVAL_S)
                if reader.is_alive():
                    _say(progress, f"  {source.name}: {time.monotonic() - started:.0f} s, {_stage(lines)}")
            code = process.wait()
        finally:
            process.kill()
    return code, lines


def _stage(lines: list[str]) -> str:
    """What the compiler did so far: `go build -v` prints a line for each package and each download."""
    downloads = sum(line.startswith("go: downloading") for line in lines)
    return f"{len(lines) - downloads} packages compiled, {downloads} modules downloaded"


@contextlib.contextmanager
def _only_one_build(root: Path, progress: bool) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    with (root / "build.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(progress, f"another process is building in {root}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _disk_shortage(go: str) -> str | None:
    modules = Path(_output(go, "env", "GOMODCACHE"))
    warm = (modules / f"k8s.io/kubernetes@v{pinned_version('hyper', 'k8s.io/kubernetes')}").is_dir()
    needed = COLD_BUILD_BYTES // 4 if warm else COLD_BUILD_BYTES
    for folder in (Path(_output(go, "env", "GOCACHE")), modules, cache_root()):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        if free < needed:
            return f"the build needs {needed >> 30} GiB under {existing}; {free >> 30} GiB are free"
    return None


def _go_directive(module: str) -> tuple[int, ...]:
    found = re.search(r"^go (\d+)\.(\d+)", (SOURCES / module / "go.mod").read_text(), re.MULTILINE)
    assert found is not None, f"go/{module}/go.mod has no go directive"
    return int(found[1]), int(found[2])


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=SOURCES).stdout.strip()


def _say(progress: bool, text: str) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Command line: build and print the folder that holds the binaries."""
    try:
        binaries = ensure()
    except BuildError as error:
        print(f"cannot build the control plane: {error}", file=sys.stderr)
        return 1
    print(binaries.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
