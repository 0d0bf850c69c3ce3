"""The shim on a machine that has a GPU and its driver and nothing else: `python3 shim.py --shim libvgpu.so`.

Standard library only, the driver by ctypes, under four minutes. Every check runs in processes of its own: with the shim
preloaded (a share of SHARE_MIB) or without it. Prints one line a check and ends with 1 when one failed. The same script
runs on the stand-in driver in tests/shim/test_device_script.py (issue 9).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
SHARE_MIB = 4096
REQUEST = 64 * MIB
OUT_OF_MEMORY = 2
RECOVERY_LIMIT_S = 1.0
PAIRS = 2000


class DriverError(Exception):
    """A driver call that did not succeed; `code` is its CUresult."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} -> {code}")
        self.code = code


class Location(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class AllocationProp(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", Location),
        ("win32", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class ArrayDescriptor(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR (_v2)."""

    _fields_ = (
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("format", ctypes.c_int),
        ("channels", ctypes.c_uint),
    )


class Driver:
    """The driver with a context on device 0; calls raise DriverError."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)

    def __call__(self, name: str, *arguments: Any) -> None:
        code = int(getattr(self.library, name)(*arguments))
        if code != 0:
            raise DriverError(name, code)

    def memory(self) -> tuple[int, int]:
        """(used, total) as cuMemGetInfo shows them."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value, total.value

    def allocate(self, bytes_: int) -> ctypes.c_uint64:
        """A plain block."""
        pointer = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(bytes_))
        return pointer


def _plain(driver: Driver, size: int) -> Callable[[], None]:
    pointer = driver.allocate(size)
    return lambda: driver("cuMemFree_v2", pointer)


def _managed(driver: Driver, size: int) -> Callable[[], None]:
    pointer = ctypes.c_uint64()
    driver("cuMemAllocManaged", ctypes.byref(pointer), ctypes.c_size_t(size), 1)
    return lambda: driver("cuMemFree_v2", pointer)


def _pitch(driver: Driver, size: int) -> Callable[[], None]:
    pointer, pitch = ctypes.c_uint64(), ctypes.c_size_t()
    width, height = ctypes.c_size_t(65536), ctypes.c_size_t(size // 65536)
    driver("cuMemAllocPitch_v2", ctypes.byref(pointer), ctypes.byref(pitch), width, height, 4)
    return lambda: driver("cuMemFree_v2", pointer)


def _asynchronous(driver: Driver, size: int) -> Callable[[], None]:
    pointer = ctypes.c_uint64()
    driver("cuMemAllocAsync", ctypes.byref(pointer), ctypes.c_size_t(size), None)

    def give_back() -> None:
        driver("cuMemFreeAsync", pointer, None)
        driver("cuStreamSynchronize", None)

    return give_back


def _pool(driver: Driver, size: int) -> Callable[[], None]:
    pointer, pool = ctypes.c_uint64(), ctypes.c_void_p()
    driver("cuDeviceGetDefaultMemPool", ctypes.byref(pool), 0)
    driver("cuMemAllocFromPoolAsync", ctypes.byref(pointer), ctypes.c_size_t(size), pool, None)

    def give_back() -> None:
        driver("cuMemFreeAsync", pointer, None)
        driver("cuStreamSynchronize", None)

    return give_back


def _physical(driver: Driver, size: int) -> Callable[[], None]:
    handle = ctypes.c_uint64()
    props = AllocationProp(type=1, location=Location(1, 0))
    driver("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(props), ctypes.c_uint64(0))
    return lambda: driver("cuMemRelease", handle)


def _array(driver: Driver, size: int) -> Callable[[], None]:
    array = ctypes.c_void_p()
    side = 16384
    shape = ArrayDescriptor(side, max(size // (side * 4), 1), 0x20, 1)
    driver("cuArrayCreate_v2", ctypes.byref(array), ctypes.byref(shape))
    return lambda: driver("cuArrayDestroy", array)


ROUTES: Mapping[str, Callable[[Driver, int], Callable[[], None]]] = {
    "cuMemAlloc": _plain,
    "cuMemAllocManaged": _managed,
    "cuMemAllocPitch": _pitch,
    "cuMemAllocAsync": _asynchronous,
    "cuMemAllocFromPoolAsync": _pool,
    "cuMemCreate": _physical,
    "cuArrayCreate": _array,
}


def _code_of(take: Callable[[], Callable[[], None]]) -> int:
    try:
        take()()
    except DriverError as error:
        return error.code
    return 0


def work_routes() -> dict[str, Any]:
    """For each route: used before, held and after, and the code when only half of the request is left."""
    driver = Driver()
    rows = {}
    for name, route in ROUTES.items():
        before, total = driver.memory()
        give_back = route(driver, REQUEST)
        held, _ = driver.memory()
        give_back()
        after, _ = driver.memory()
        filler = driver.allocate(max(SHARE_MIB * MIB - after - REQUEST // 2, MIB))
        code = _code_of(lambda route=route: route(driver, REQUEST))  # type: ignore[misc]
        driver("cuMemFree_v2", filler)
        rows[name] = {"held": held - before, "left": after - before, "over": code, "total": total}
    return rows


def work_memory() -> dict[str, Any]:
    """What a fresh process sees."""
    used, total = Driver().memory()
    return {"used": used, "total": total}


def work_hold() -> dict[str, Any]:
    """Hold nine tenths of what is free, say so, wait to be killed."""
    driver = Driver()
    used, _ = driver.memory()
    driver.allocate((SHARE_MIB * MIB - used) * 9 // 10)
    print("held", flush=True)
    signal.pause()
    return {}


def work_pairs() -> dict[str, Any]:
    """Microseconds of an allocation and its free."""
    driver = Driver()
    figures = {}
    for name in ("cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"):
        began = time.perf_counter()
        for _ in range(PAIRS):
            ROUTES[name](driver, 2 * MIB)()
        figures[name] = (time.perf_counter() - began) / PAIRS * 1e6
    return figures


def work_pointers() -> dict[str, Any]:
    """Does cuGetProcAddress give the exported symbols' own addresses? (spec/shim.md 13)"""
    driver = Driver()
    version = ctypes.c_int()
    driver("cuDriverGetVersion", ctypes.byref(version))
    asked = {"cuMemAlloc": "cuMemAlloc_v2", "cuMemFree": "cuMemFree_v2", "cuMemCreate": "cuMemCreate"}
    same = {}
    for base, symbol in asked.items():
        answer = ctypes.c_void_p()
        code = driver.library.cuGetProcAddress(base.encode(), ctypes.byref(answer), 11030, ctypes.c_uint64(0))
        exported = ctypes.cast(getattr(driver.library, symbol), ctypes.c_void_p).value
        same[symbol] = code == 0 and answer.value == exported
    return {"driver": version.value, "same": same}


WORKERS: Mapping[str, Callable[[], dict[str, Any]]] = {
    "routes": work_routes,
    "memory": work_memory,
    "hold": work_hold,
    "pairs": work_pairs,
    "pointers": work_pointers,
}


class Bench:
    """Starts workers with and without the shim, and collects what was found."""

    def __init__(self, shim: Path, folder: Path) -> None:
        self.environment = {
            "LD_PRELOAD": str(shim.resolve()),
            "CUDA_DEVICE_MEMORY_LIMIT_0": f"{SHARE_MIB}m",
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(folder / "device.cache"),
        }
        self.failed = 0

    def start(self, worker: str, *, shim: bool = True) -> subprocess.Popen[str]:
        """A worker process."""
        env = dict(os.environ) | (self.environment if shim else {})
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", worker]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def ask(self, worker: str, *, shim: bool = True) -> dict[str, Any]:
        """A worker's answer."""
        out, err = self.start(worker, shim=shim).communicate(timeout=100)
        if not out.strip():
            raise RuntimeError(f"{worker}: {err[-800:]}")
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        return answer

    def check(self, name: str, passed: bool, detail: object) -> None:
        """Print and remember one result."""
        self.failed += not passed
        print(f"{'ok  ' if passed else 'FAIL'} {name}: {detail}", flush=True)


def check_routes(bench: Bench) -> None:
    """Charged, refused at the limit, given back; without the shim nothing is refused."""
    for name, row in bench.ask("routes").items():
        fine = row["held"] >= REQUEST and row["left"] == 0 and row["over"] == OUT_OF_MEMORY
        bench.check(f"route {name}", fine and row["total"] == SHARE_MIB * MIB, row)
    plain = bench.ask("routes", shim=False)
    bench.check("without the shim", all(row["over"] == 0 for row in plain.values()), "nothing refused")


def check_recovery(bench: Bench) -> None:
    """kill -9 of the holder: the share is whole again within a second."""
    holder = bench.start("hold")
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    before = bench.ask("memory")["used"]
    holder.kill()
    holder.communicate()
    began = time.monotonic()
    after = bench.ask("memory")["used"]
    bench.check("seen by others", before > SHARE_MIB * MIB // 2, f"{before // MIB} MiB")
    waited = time.monotonic() - began
    bench.check("given back after kill -9", after < before // 2, f"{after // MIB} MiB left after {waited:.2f} s")


def check_view(bench: Bench) -> None:
    """nvidia-smi, where it is installed."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        print("--   nvidia-smi is not installed")
        return
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits", "-i", "0"]
    env = dict(os.environ) | bench.environment
    shown = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout.strip()
    bench.check("nvidia-smi shows the share", shown == str(SHARE_MIB), shown)


def check_cost(bench: Bench) -> None:
    """Printed, not judged: the differences between two runs."""
    with_shim, without = bench.ask("pairs"), bench.ask("pairs", shim=False)
    for name, value in with_shim.items():
        print(f"--   {name} + free: {without[name]:.2f} us, with the shim {value:.2f} us")
    contexts = bench.ask("memory"), bench.ask("memory", shim=False)
    print(
        f"--   a context: {contexts[0]['used'] // MIB} MiB charged; card shows {contexts[1]['used'] // MIB} MiB in use"
    )


def main() -> int:
    """Run all checks; the exit status says whether one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shim", type=Path, help="libvgpu.so, built beforehand")
    parser.add_argument("--worker", choices=sorted(WORKERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        print(json.dumps(WORKERS[options.worker]()))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.shim, Path(folder))
        pointers = bench.ask("pointers", shim=False)
        bench.check("cuGetProcAddress gives exported addresses", all(pointers["same"].values()), pointers)
        check_routes(bench)
        check_recovery(bench)
        check_view(bench)
        check_cost(bench)
    print(f"{bench.failed} failed")
    return 1 if bench.failed else 0


if __name__ == "__main__":
    sys.exit(main())
