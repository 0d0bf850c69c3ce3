"""`make test`: runs the test layers one after another, prints each one's time, and what was skipped last.

A layer whose tools are missing (Go, a C compiler) is a printed skip on a laptop and a failure where CI=true. What a
machine does not allow (root, namespaces, cgroups) is a printed skip everywhere: no file of ours can install it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CI = os.environ.get("CI", "").lower() == "true"


@dataclass(frozen=True)
class Layer:
    """One layer: its pytest arguments, the programs that it needs, and what to install for each."""

    name: str
    what: str
    pytest_args: tuple[str, ...]
    needs: dict[str, str] = field(default_factory=dict)
    needs_root: bool = False
    free_mib: int = 500
    wrapper: tuple[str, ...] = ()
    """Command that runs the tests in namespaces of their own, where the user may make them."""
    prepare: tuple[str, ...] = ()
    """Command that builds what the tests need, before they lose the network."""
    reruns: int = 0
    """How often a failed run is tried again, each time said loudly."""


C_COMPILER = {"cc": "a C compiler (Debian: apt-get install gcc libc6-dev)"}
BUILDS = {"go": "Go >= 1.26 (https://go.dev/dl)", **C_COMPILER}
NPM = {"npm": "npm, which helm is fetched by (Debian: apt-get install npm)"}
LAYERS = (
    Layer(
        "unit",
        "unit, property, scenario and embedded tests",
        (
            "tests",
            "--ignore=tests/cluster",
            "--ignore=tests/node",
            "--ignore=tests/helm",
            "--ignore=tests/shim",
            "--ignore=tests/joined",
            "--ignore=tests/chart",
            "-m",
            "not control_plane",
            "-n",
            "2",
        ),
    ),
    Layer(
        "chart",
        "the chart rendered by helm, against the code and against values files",
        ("tests/chart",),
        NPM,
    ),
    Layer(
        "shim",
        "the in-container limiter over a fake driver",
        ("tests/shim", "tests/joined", "-p", "no:randomly"),
        C_COMPILER,
    ),
    Layer(
        "control-plane",
        "real etcd, kube-apiserver, kube-scheduler and kubectl",
        ("tests/cluster", "tests/sim", "-m", "control_plane", "-p", "no:randomly"),
        BUILDS,
        free_mib=6000,
        wrapper=(sys.executable, "-m", "tests.cluster.namespace"),
        prepare=(sys.executable, "-m", "tests.cluster.build"),
    ),
    Layer(
        "node",
        "real kubelet, containerd and runc with our device plugin",
        ("tests/node", "-p", "no:randomly"),
        {
            **BUILDS,
            "apt-get": "Debian: the node's tools come from its packages",
        },
        needs_root=True,
        free_mib=8000,
        wrapper=(sys.executable, "-m", "tests.node.namespace"),
        prepare=(sys.executable, "-m", "tests.node.prepare"),
    ),
    Layer(
        "cluster",
        "helm install of our images on a real node, then as a user",
        ("tests/helm", "-p", "no:randomly"),
        {
            **BUILDS,
            "apt-get": "Debian: images and the node's tools come from its packages",
            **NPM,
        },
        needs_root=True,
        free_mib=10000,
        wrapper=(sys.executable, "-m", "tests.node.namespace"),
        prepare=(sys.executable, "-m", "tests.helm.prepare"),
        reruns=1,
    ),
)


def missing(layer: Layer) -> list[str]:
    """What this machine lacks for the layer, as sentences."""
    lacks = [
        f"{program} is missing: install {how}" for program, how in layer.needs.items() if not shutil.which(program)
    ]
    cache = cache_folder()
    while not cache.exists():
        cache = cache.parent
    free = shutil.disk_usage(cache).free // 2**20
    if free < layer.free_mib:
        lacks.append(f"{free} MiB free for HAMI_CACHE, {layer.free_mib} needed")
    return lacks


def rights_lacking(layer: Layer) -> list[str]:
    """What this user may not do here, as sentences; no file of ours can mend that."""
    if not layer.needs_root:
        return []
    namespaces = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    known = os.geteuid() == 0 and shutil.which(namespaces[0]) is not None
    if not known or subprocess.run(namespaces, capture_output=True, check=False).returncode != 0:
        return ["needs root that may make network, mount and process namespaces"]
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    for hierarchy in (Path(fields[1]) for fields in mounts if fields[2] in ("cgroup", "cgroup2")):
        group = hierarchy / f"hami-may-{os.getpid()}"
        try:
            group.mkdir()
            group.rmdir()
        except OSError as error:
            return [f"needs cgroups that may be written to: {error}"]
    return []


def shim_clients() -> dict[str, str]:
    """A Python with the packages of requirements/shim-clients.lock, made once per lock; as a variable for the tests."""
    lock = ROOT / "requirements" / "shim-clients.lock"
    folder = cache_folder() / f"shim-clients-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if not (folder / ".done").exists():
        print(
            "   installing what the limiter is tried with (cuda-bindings, gpustat, nvitop, clang-tidy, cppcheck, zig)",
            flush=True,
        )
        shutil.rmtree(folder, ignore_errors=True)
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes"]
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        subprocess.run([*install, "-r", str(lock)], check=True)
        (folder / ".done").touch()
    return {"HAMI_SHIM_CLIENTS": str(python)}


def cache_folder() -> Path:
    """Where everything slow to build is kept."""
    return Path(os.environ.get("HAMI_CACHE", Path.home() / ".cache" / "hami"))


def run(layer: Layer, skipped: list[str]) -> bool:
    """Runs one layer; True when it passed or may be skipped."""
    not_allowed = rights_lacking(layer)
    if not_allowed:
        skipped.extend(f"{layer.name}: {lack}" for lack in not_allowed)
        print(f"== {layer.name}: skipped: {'; '.join(not_allowed)}", flush=True)
        return True
    lacks = missing(layer)
    if lacks:
        skipped.extend(f"{layer.name}: {lack}" for lack in lacks)
        print(f"== {layer.name}: {'FAILED' if CI else 'skipped'}: {'; '.join(lacks)}", flush=True)
        return not CI
    print(f"== {layer.name}: {layer.what}", flush=True)
    started = time.monotonic()
    command = [*layer.wrapper, sys.executable, "-m", "pytest", "-q", *layer.pytest_args]
    environment = {**os.environ, **(shim_clients() if layer.name == "shim" else {})}
    if layer.prepare and subprocess.run(layer.prepare, cwd=ROOT, env=environment, check=False).returncode != 0:
        print(f"== {layer.name}: FAILED to build what it needs after {time.monotonic() - started:.1f} s", flush=True)
        return False
    passed, lines = _pytest(command, environment)
    for again in range(layer.reruns):
        if passed:
            break
        print(f"== {layer.name}: FAILED, RERUN {again + 1} of {layer.reruns} (what failed is above)", flush=True)
        passed, lines = _pytest(command, environment)
    skipped.extend(f"{layer.name}: {line}" for line in lines if re.match(r"SKIPPED \[", line))
    print(f"== {layer.name}: {'passed' if passed else 'FAILED'} in {time.monotonic() - started:.1f} s", flush=True)
    return passed


def _pytest(command: list[str], environment: dict[str, str]) -> tuple[bool, list[str]]:
    """Runs the tests, their output shown as it comes; whether they passed, and the lines."""
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    return process.returncode == 0, lines


def main(names: list[str]) -> int:
    unknown = set(names) - {layer.name for layer in LAYERS}
    if unknown:
        print(f"unknown layer {', '.join(sorted(unknown))}: known are {', '.join(layer.name for layer in LAYERS)}")
        return 2
    chosen = [layer for layer in LAYERS if not names or layer.name in names]
    skipped: list[str] = []
    times: list[str] = []
    failed = []
    for layer in chosen:
        started = time.monotonic()
        if not run(layer, skipped):
            failed.append(layer.name)
        times.append(f"{layer.name} {time.monotonic() - started:.1f} s")
    print(f"layers: {', '.join(times)}")
    print(f"skipped ({len(skipped)}):" if skipped else "skipped: nothing")
    for line in skipped:
        print(f"  {line}")
    if failed:
        print(f"FAILED layers: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
