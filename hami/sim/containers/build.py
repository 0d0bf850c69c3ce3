"""Compiles what real containers need: the limiter, the stand-in driver, the guest and the program that starts it.

Everything is built once per content of its sources; the result's folder is named by their hash.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import hami
from hami.core.errors import HamiError

Say = Callable[[str], None]

SHIM_SOURCES: Final = Path(hami.__file__).parent / "shim"
DRIVER_SOURCES: Final = Path(hami.__file__).parents[1] / "tests" / "shim" / "fake"
"""Part of a checkout, not of the wheel."""
GUEST_SOURCES: Final = Path(__file__).parent / "guest"
CUDA_VERSION: Final = 12040
_CFLAGS: Final = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread")


class BuildError(HamiError):
    """A compiler said no, or there is none; the text is one sentence."""


def build_shim(cache: Path, say: Say) -> Path:
    """`libvgpu.so`, built by meson. Raises BuildError."""
    meson = _tool("meson", "python package meson")
    sources = [path for path in SHIM_SOURCES.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]

    def compile_into(out: Path) -> None:
        say("building the limiter, libvgpu.so (once)")
        _call([meson, "setup", str(out / "build"), str(SHIM_SOURCES), "--buildtype=release"])
        _call([meson, "compile", "-C", str(out / "build"), "vgpu:shared_library"])
        shutil.copy2(out / "build" / "libvgpu.so", out)
        shutil.rmtree(out / "build")

    return _once(cache, "limiter", sources, compile_into) / "libvgpu.so"


def build_driver(cache: Path, say: Say) -> Path:
    """Folder with the stand-in `libcuda.so.1` and `libnvidia-ml.so.1`. Raises BuildError."""
    if not DRIVER_SOURCES.is_dir():
        raise BuildError("the stand-in driver's sources come with a checkout of the repository only")
    sources = sorted(path for path in DRIVER_SOURCES.iterdir() if path.suffix in (".c", ".h", ".def"))
    parts = [path for path in sources if path.suffix == ".c"]
    nvml = [path for path in parts if path.name in ("nvml.c", "mig.c", "config.c", "book.c", "fault.c")]
    cuda = [path for path in parts if path.name not in ("nvml.c", "mig.c")]

    def compile_into(out: Path) -> None:
        say("building a stand-in driver (once)")
        _library(cuda, out / "libcuda.so.1")
        _library(nvml, out / "libnvidia-ml.so.1")

    return _once(cache, "driver", [*sources, *_headers()], compile_into)


def build_guest(cache: Path) -> Path:
    """Folder with `enter` and `gpu-fill`. Raises BuildError."""

    def compile_into(out: Path) -> None:
        for source in GUEST_SOURCES.glob("*.c"):
            target = out / source.stem.replace("_", "-")
            _call([compiler(), *_CFLAGS, f"-I{SHIM_SOURCES / 'include'}", str(source), "-o", str(target), "-ldl"])

    return _once(cache, "guest", [*GUEST_SOURCES.glob("*.c"), *_headers()], compile_into)


def compiler() -> str:
    """The C compiler. Raises BuildError where there is none."""
    found = shutil.which("cc") or shutil.which("gcc")
    if found is None:
        raise BuildError("there is no C compiler (cc) on this machine")
    return found


def _headers() -> list[Path]:
    return sorted((SHIM_SOURCES / "include").glob("*.h"))


def _library(parts: Sequence[Path], target: Path) -> None:
    flags = [*_CFLAGS, "-shared", "-Wl,-Bsymbolic", f"-Wl,-soname,{target.name}", f"-DFAKE_CUDA_VERSION={CUDA_VERSION}"]
    folders = [f"-I{SHIM_SOURCES / 'include'}", f"-I{DRIVER_SOURCES}"]
    _call([compiler(), *flags, *folders, *map(str, parts), "-o", str(target)])


def _tool(name: str, what: str) -> str:
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise BuildError(f"{name} is missing ({what})")
    return found


def _call(command: Sequence[str]) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    done = subprocess.run(["env", f"PATH={path}", *command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
        raise BuildError(f"{Path(command[0]).name} failed: {(said or ['no message'])[0].strip()}")


def _once(cache: Path, name: str, sources: Iterable[Path], fill: Callable[[Path], None]) -> Path:
    """The folder for this content, filled once; processes that start together wait for each other."""
    digest = hashlib.sha256(f"{_CFLAGS}{CUDA_VERSION}".encode())
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    root = cache / "containers"
    root.mkdir(parents=True, exist_ok=True)
    target = root / f"{name}-{digest.hexdigest()[:16]}"
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            fresh = root / f".{target.name}"
            shutil.rmtree(fresh, ignore_errors=True)
            fresh.mkdir()
            fill(fresh)
            fresh.rename(target)
    return target
