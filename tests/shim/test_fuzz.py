"""Random takes and gives by all routes, the driver failing at times: the share always shows the truth of the card."""

from __future__ import annotations

import random

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.container import card
from tests.shim.harness import SOAK

SEEDS = range(1, 201 if SOAK else 21)
STEPS = 1500
# Calls whose failure leaves the object in a state that the program below cannot go on from (an address given back while
# it is still mapped, a graph that is neither there nor gone) are left out.
MAY_FAIL = [
    "cuMemAlloc_v2",
    "cuMemAlloc",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemFree_v2",
    "cuMemFree",
    "cuMemAllocAsync",
    "cuMemAllocAsync_ptsz",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolTrimTo",
    "cuMemCreate",
    "cuMemMap",
    "cuMemRetainAllocationHandle",
    "cuMemImportFromShareableHandle",
    "cuArrayCreate_v2",
    "cuArray3DCreate_v2",
    "cuArrayDestroy",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuImportExternalMemory",
    "cuDestroyExternalMemory",
    "cuGraphAddMemAllocNode",
    "cuGraphAddNode",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuCtxCreate_v2",
    "cuCtxDestroy_v2",
    "cuGreenCtxCreate",
    "cuIpcOpenMemHandle_v2",
    "cuMemPoolGetAttribute",
]
CODES = (1, 2, 400, 700, 999)


def _run(container: ContainerFactory, seed: int, cuda: str, faults: str) -> None:
    box = container(limit_mib=512, cards=[card(0, context_kib=8 * 1024, module_kib=4 * 1024)], cuda=cuda)
    done = box.run("fuzz", seed, STEPS, extra={"FAKE_GPU_FAIL": faults} if faults else None)
    assert done.stdout == "well\n", f"{done.returncode} {done.stdout} {done.stderr[-500:]} {faults}"


@pytest.mark.parametrize("seed", SEEDS)
def test_random_sequence(container: ContainerFactory, seed: int) -> None:
    _run(container, seed, ("11.8", "12.4", "12.9", "13.5")[seed % 4], "")


@pytest.mark.parametrize("seed", SEEDS)
def test_random_sequence_with_failing_calls(container: ContainerFactory, seed: int) -> None:
    chance = random.Random(seed)
    chosen = chance.sample(MAY_FAIL, 12)
    faults = ",".join(f"{name}:{chance.randrange(1, 12)}:{chance.choice(CODES)}" for name in chosen)
    _run(container, seed, chance.choice(("11.8", "12.4", "13.5")), faults)
