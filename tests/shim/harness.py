"""Builds the stand-in driver, the test programs and the shim (container.py: where they run).

Everything is built once per content: the result's folder is named by a hash of all sources. `HAMI_CACHE` says where;
without it the temp directory is used. Nothing here needs a GPU, a driver or a CUDA toolkit (issue 9).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).resolve().parent
SHIM_SOURCES = HERE.parents[1] / "hami" / "shim"
CUDA_VERSIONS = {"11.8": 11080, "12.4": 12040, "12.9": 12090, "13.5": 13050}
VERSIONED = ("12.9", "13.5")  # these give their symbols an ELF version, so that dlvsym finds them
MIB = 1024 * 1024
KEEP_BUILDS_S = 3 * 24 * 3600
SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")  # `make soak`: ten times the rounds
_CFLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden")
_SHARED_PARTS = ("config.c", "book.c", "fault.c")  # in both stand-in libraries
_NVML_PARTS = ("nvml.c", "mig.c", "events.c")
_NOT_IN_DRIVER = (*_SHARED_PARTS, *_NVML_PARTS, "resolve.c")  # resolve.c is built once a CUDA version
_ROUTE_PARTS = ("symbols.c", "find.c", "routes.c")  # no programs of their own
_TO_LINK = "link"  # the newest driver without ELF versions: what programs are linked to
_SHARED_HEADERS = ("cuda_min.h", "nvml_min.h")


class BuildError(Exception):
    """A compiler or meson said no; the message carries its output."""


def compiler() -> str | None:
    """The C compiler, or None where there is none."""
    return shutil.which("cc") or shutil.which("gcc")


def _cache_root() -> Path:
    root = os.environ.get("HAMI_CACHE") or str(Path(tempfile.gettempdir()) / f"hami-cache-{os.getuid()}")
    path = Path(root) / "shim-tests"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and "__pycache__" not in p.parts)


def _content_hash(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(str(path.name).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _call(command: Sequence[str], cwd: Path | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")


def _forget_old(root: Path, name: str) -> None:
    """Builds of other contents that nobody made for three days go when a new one is made."""
    kind = name.rsplit("-", 1)[0]
    for other in root.glob(f"{kind}-*"):
        if other.is_dir() and time.time() - other.stat().st_mtime > KEEP_BUILDS_S:
            shutil.rmtree(other, ignore_errors=True)


@contextmanager
def _built_once(name: str) -> Iterator[tuple[Path, bool]]:
    """The folder for a content, and whether it still has to be filled; workers of one machine wait for each other."""
    root = _cache_root()
    target = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (target / "done").exists():
            yield target, False
            return
        _forget_old(root, name)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        yield target, True
        (target / "done").touch()


def exports() -> list[tuple[str, str, int, bool]]:
    """(name asked of cuGetProcAddress, symbol, first CUDA version, per-thread stream) of the stand-in driver."""
    text = (HERE / "fake" / "exports.def").read_text()
    rows = re.findall(r"^EXPORT\((\w+), (\w+), (\d+), (\d)\)$", text, re.MULTILINE)
    return [(base, symbol, int(since), per_thread == "1") for base, symbol, since, per_thread in rows]


def _version_script(version: int, node: str) -> str:
    names = [symbol for _, symbol, since, _ in exports() if since <= version]
    names += ["fakeCardUsed", "fakeCardUsedByMe", "fakeCallsOf", "fakeLaunches"]
    return node + " { global: " + " ".join(f"{name};" for name in names) + " local: *; };\n"


def _includes() -> list[str]:
    return [f"-I{SHIM_SOURCES / 'include'}", f"-I{HERE / 'fake'}", f"-I{HERE / 'programs'}"]


def _compile(cc: str, source: Path, out: Path, *extra: str) -> Path:
    target = out / f"{source.parent.name}-{source.stem}{'-'.join(extra).replace('=', '')}.o"
    _call([cc, *_CFLAGS, *extra, *_includes(), "-c", str(source), "-o", str(target)])
    return target


def _link_drivers(cc: str, out: Path, shared: list[Path]) -> None:
    sources = sorted((HERE / "fake").glob("*.c"))
    parts = [_compile(cc, source, out) for source in sources if source.name not in _NOT_IN_DRIVER]
    nvml = [_compile(cc, HERE / "fake" / part, out) for part in _NVML_PARTS]
    for name, version in {**CUDA_VERSIONS, _TO_LINK: 13050}.items():
        folder = out / "driver" / name
        folder.mkdir(parents=True)
        script = folder / "exports.map"
        script.write_text(_version_script(version, "libcuda.so.1" if name in VERSIONED else ""))
        resolve = _compile(cc, HERE / "fake" / "resolve.c", out, f"-DFAKE_CUDA_VERSION={version}")
        link = [cc, "-shared", "-pthread", "-Wl,-Bsymbolic"]
        objects = [str(o) for o in (*parts, *shared, resolve)]
        cuda = folder / "libcuda.so.1"
        _call([*link, f"-Wl,--version-script={script}", "-Wl,-soname,libcuda.so.1", *objects, "-o", str(cuda)])
        objects = [str(o) for o in (*nvml, *shared)]
        _call([*link, "-Wl,-soname,libnvidia-ml.so.1", *objects, "-o", str(folder / "libnvidia-ml.so.1")])


def _link_programs(cc: str, out: Path) -> None:
    folder = out / "bin"
    folder.mkdir()
    driver = str(out / "driver" / _TO_LINK / "libcuda.so.1")
    parts = [str(_compile(cc, HERE / "programs" / name, out)) for name in _ROUTE_PARTS]
    for source in sorted((HERE / "programs").glob("*.c")):
        if source.name in _ROUTE_PARTS:
            continue
        objects = [str(_compile(cc, source, out))]
        objects += parts if '"symbols.h"' in source.read_text() else []
        link = [cc, "-pthread", *objects, "-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", driver, "-ldl"]
        _call([*link, "-o", str(folder / source.stem)])


def build_fakes() -> Path:
    """Folder with driver/<CUDA version>/{libcuda.so.1,libnvidia-ml.so.1} and bin/<program>.

    Raises: BuildError.
    """
    cc = compiler()
    if cc is None:
        raise BuildError("no C compiler")
    headers = [SHIM_SOURCES / "include" / name for name in _SHARED_HEADERS]
    name = "fakes-" + _content_hash([Path(__file__), *_files(HERE / "fake"), *_files(HERE / "programs"), *headers])
    with _built_once(name) as (out, needed):
        if needed:
            shared = [_compile(cc, HERE / "fake" / part, out) for part in _SHARED_PARTS]
            _link_drivers(cc, out, shared)
            _link_programs(cc, out)
    return out


def build_shim(kind: str = "release", sanitizer: str | None = None) -> Path:
    """Build folder of meson with libvgpu.so and vgpu-info; `kind` and `sanitizer` are meson's buildtype and b_sanitize.

    Raises: BuildError.
    """
    tools = Path(sys.executable).parent
    with _built_once(f"shim-{kind}-{sanitizer}-" + _content_hash(_files(SHIM_SOURCES))) as (out, needed):
        if needed:
            path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
            meson = [str(tools / "meson"), "setup", str(out / "build"), str(SHIM_SOURCES), f"--buildtype={kind}"]
            targets = []
            if sanitizer is not None:
                meson += [f"-Db_sanitize={sanitizer}", "-Db_lundef=false"]
                targets = ["vgpu:shared_library"]
            for command in (meson, [str(tools / "meson"), "compile", "-C", str(out / "build"), *targets]):
                _call(["env", f"PATH={path}", *command])
    return out / "build"


def build_arm64(python: str) -> Path:
    """libvgpu.so for arm64, compiled by zig (the ziglang package of `python`), for glibc 2.17.

    Raises: BuildError.
    """
    tools = Path(sys.executable).parent
    with _built_once("shim-arm64-" + _content_hash([Path(__file__), *_files(SHIM_SOURCES)])) as (out, needed):
        if needed:
            zig = f"'{python}', '-m', 'ziglang'"
            cross = out / "arm64.ini"
            cross.write_text(
                f"[binaries]\nc = [{zig}, 'cc', '-target', 'aarch64-linux-gnu.2.17']\nar = [{zig}, 'ar']\n"
                "[host_machine]\nsystem = 'linux'\ncpu_family = 'aarch64'\ncpu = 'aarch64'\nendian = 'little'\n"
            )
            env = ["env", f"PATH={tools}{os.pathsep}{os.environ.get('PATH', '')}"]
            env += [f"ZIG_GLOBAL_CACHE_DIR={_cache_root() / 'zig'}"]
            meson = [str(tools / "meson")]
            _call([*env, *meson, "setup", str(out / "build"), str(SHIM_SOURCES), f"--cross-file={cross}"])
            _call([*env, *meson, "compile", "-C", str(out / "build"), "vgpu:shared_library"])
    return out / "build" / "libvgpu.so"


UNITS = {
    "parser": ("parse.c",),
    "fuzz_config": ("config.c", "parse.c", "log.c"),
    "fuzz_region": ("account.c", "config.c", "filelock.c", "log.c", "member.c", "parse.c", "region_file.c"),
}
"""Programs of tests/shim/units that call the shim's parts directly, and which."""


def build_unit(name: str) -> Path:
    """A program of `UNITS` with the address and undefined-behaviour sanitizers, without the shim as a library.

    Raises: BuildError.
    """
    cc = compiler()
    if cc is None:
        raise BuildError("no C compiler")
    parts = [HERE / "units" / f"{name}.c", *(SHIM_SOURCES / "src" / part for part in UNITS[name])]
    read = [Path(__file__), HERE / "units" / "mutate.h", *_files(SHIM_SOURCES / "include"), *parts]
    read += sorted((SHIM_SOURCES / "src").glob("*.h"))
    with _built_once(f"{name}-" + _content_hash(read)) as (out, needed):
        if needed:
            flags = ["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-fno-strict-aliasing"]
            flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
            places = [f"-I{SHIM_SOURCES / 'src'}", *_includes()]
            _call([cc, *flags, *places, *map(str, parts), "-o", str(out / name)])
    return out / name


def build_bystanders() -> Path:
    """Folder with hello, hello-static (where a static C library is installed), next_puts.so and next_dlsym.so.

    Raises: BuildError.
    """
    cc = compiler()
    if cc is None:
        raise BuildError("no C compiler")
    units = HERE / "units"
    sources = [units / "hello.c", units / "next_puts.c", units / "next_dlsym.c"]
    with _built_once("bystanders-" + _content_hash([Path(__file__), *sources])) as (out, needed):
        if needed:
            _call([cc, "-O1", "-fno-builtin", str(sources[0]), "-o", str(out / "hello")])
            flags = ["-D_GNU_SOURCE", "-shared", "-fPIC", "-fno-builtin"]
            for source in sources[1:]:
                _call([cc, *flags, str(source), "-o", str(out / f"{source.stem}.so")])
            with suppress(BuildError):
                _call([cc, "-static", str(sources[0]), "-o", str(out / "hello-static")])
    return out
