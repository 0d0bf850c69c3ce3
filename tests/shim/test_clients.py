"""Real packages on the stand-in driver: cuda-bindings, gpustat, nvitop. They are not among the pinned packages of the
project: these tests run where HAMI_SHIM_CLIENTS names a Python that has them, and are skipped with a line elsewhere."""

from __future__ import annotations

import subprocess

import pytest

from tests.shim.conftest import CLIENTS, ContainerFactory, absent

PYTHON = CLIENTS

DRIVER_LAYER = """
from cuda.bindings import driver as d

def ok(answer):
    assert answer[0] == d.CUresult.CUDA_SUCCESS, answer
    return answer[1] if len(answer) == 2 else answer[1:]

OOM = d.CUresult.CUDA_ERROR_OUT_OF_MEMORY
MIB, GIB = 1 << 20, 1 << 30
ok(d.cuInit(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
assert ok(d.cuMemGetInfo()) == (100 * MIB, 100 * MIB)
held = ok(d.cuMemAlloc(64 * MIB))
assert ok(d.cuMemGetInfo())[0] == 36 * MIB
props = d.CUmemAllocationProp()
props.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
props.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
pool = ok(d.cuDeviceGetDefaultMemPool(0))
refused = [
    d.cuMemAlloc(GIB), d.cuMemAllocManaged(GIB, 1), d.cuMemAllocPitch(1 << 16, 1 << 14, 4),
    d.cuMemAllocAsync(GIB, 0), d.cuMemAllocFromPoolAsync(GIB, pool, 0), d.cuMemCreate(GIB, props, 0),
]
assert [answer[0] for answer in refused] == [OOM] * len(refused), refused
ok(d.cuMemFree(held))
assert ok(d.cuMemGetInfo())[0] == 100 * MIB
print("well")
"""


def _needs(module: str) -> None:
    if subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False).returncode != 0:
        absent(f"{PYTHON} has no {module}; HAMI_SHIM_CLIENTS can name one that has")


@pytest.mark.parametrize("cuda", ["12.4", "12.9", "13.5"])
def test_cuda_bindings(container: ContainerFactory, cuda: str) -> None:
    _needs("cuda.bindings.driver")
    box = container(limit_mib=100, cuda=cuda)
    done = box.run([PYTHON, "-c", DRIVER_LAYER])
    assert done.stdout == "well\n", done.stderr[-3000:]
    assert "AssertionError" in box.run([PYTHON, "-c", DRIVER_LAYER], shim=False).stderr  # negative control


@pytest.mark.parametrize("module", ["gpustat", "nvitop"])
def test_monitors_show_the_share(container: ContainerFactory, module: str) -> None:
    _needs(module)
    box = container(limit_mib=1000)
    with box.holding(300):
        command = [PYTHON, "-m", module, *(["-1"] if module == "nvitop" else [])]
        done = box.run(command, extra={"HOME": "/", "TERM": "xterm", "COLUMNS": "120"})
        assert done.returncode == 0, done.stderr[-2000:]
        assert "300" in done.stdout
        assert "1000" in done.stdout
        assert str(16384) not in done.stdout


FIND_RUNTIMES = "import glob, sys; print(*sorted(glob.glob(sys.prefix + '/lib/**/libcudart.so.*', recursive=True)))"
START_RUNTIME = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
count, pointer = ctypes.c_int(), ctypes.c_void_p()
print(runtime.cudaGetDeviceCount(ctypes.byref(count)), runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1)))
"""


@pytest.mark.parametrize("cuda", ["11.8", "12.4", "12.9", "13.5"])
def test_runtimes_resolve_all_their_names(container: ContainerFactory, cuda: str) -> None:
    """libcudart asks for its 380 to 480 names, then stops at the private tables with the code it has without us."""
    found = subprocess.run([PYTHON, "-c", FIND_RUNTIMES], capture_output=True, text=True, check=True).stdout.split()
    if not found:
        absent(f"{PYTHON} has no nvidia-cuda-runtime; HAMI_SHIM_CLIENTS can name one that has")
    box = container(limit_mib=100, cuda=cuda)
    for runtime in found:
        under, plain = (box.run([PYTHON, "-c", START_RUNTIME, runtime], shim=shim) for shim in (True, False))
        assert (under.returncode, under.stdout, under.stderr) == (plain.returncode, plain.stdout, plain.stderr)
        assert under.returncode == 0, runtime
