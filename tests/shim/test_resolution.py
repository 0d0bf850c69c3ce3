"""What cuGetProcAddress and dlsym answer under the shim: always the driver's own choice of version and stream, either
itself or our hook of exactly that symbol (HAMi-core#57, #71, #178, #233, #320, HAMi#1055)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.shim import harness
from tests.shim.conftest import ContainerFactory
from tests.shim.container import json_lines
from tests.shim.hooks import hooked

OURS, DRIVERS = "libvgpu.so", "libcuda.so.1"
Row = dict[str, Any]


def _answers(rows: list[Row]) -> dict[tuple[str, str, int, int], Row]:
    return {(row["by"], row["name"], row["version"], row["flags"]): row for row in rows}


@pytest.mark.parametrize("cuda", harness.CUDA_VERSIONS)
def test_every_answer_is_the_drivers_or_its_hook(container: ContainerFactory, cuda: str) -> None:
    box = container(limit_mib=1024, cuda=cuda)
    plain = _answers(json_lines(box.run("addresses", shim=False)))
    under = _answers(json_lines(box.run("addresses")))
    assert plain.keys() == under.keys()
    hooks = hooked()
    for key, row in under.items():
        own = plain[key]
        assert (row["result"], row["status"]) == (own["result"], own["status"]), key
        assert row["symbol"] == own["symbol"], key
        if own["symbol"] in hooks:
            assert row["file"] == OURS, key
        elif own["file"]:
            assert row["file"] == DRIVERS, key
        else:
            assert row["file"] == "", key


def test_per_thread_stream_flag_gives_the_per_thread_form(container: ContainerFactory) -> None:
    rows = _answers(json_lines(container(limit_mib=1024).run("addresses")))
    assert rows["proc2", "cuMemAllocAsync", 12000, 2]["symbol"] == "cuMemAllocAsync_ptsz"
    assert rows["proc2", "cuMemAllocAsync", 12000, 0]["symbol"] == "cuMemAllocAsync"
    assert rows["proc2", "cuLaunchKernel", 12000, 2]["symbol"] == "cuLaunchKernel_ptsz"
    assert rows["proc2", "cuGraphLaunch", 12000, 2]["symbol"] == "cuGraphLaunch_ptsz"


def test_context_creation_is_never_crossed(container: ContainerFactory) -> None:
    rows = _answers(json_lines(container(limit_mib=1024, cuda="13.5").run("addresses")))
    for version, symbol in ((3020, "cuCtxCreate_v2"), (11040, "cuCtxCreate_v3"), (12050, "cuCtxCreate_v4")):
        assert rows["proc2", "cuCtxCreate", version, 0]["symbol"] == symbol
    assert rows["proc1", "cuGetProcAddress", 11030, 0]["symbol"] == "cuGetProcAddress"
    assert rows["proc1", "cuGetProcAddress", 12000, 0]["symbol"] == "cuGetProcAddress_v2"


def test_no_duty_means_the_drivers_own_pointer(container: ContainerFactory) -> None:
    """Without any setting nothing stands between the program and the driver."""
    box = container(limit_mib=None)
    bare = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": None, "NVIDIA_VISIBLE_DEVICES": None}
    rows = _answers(json_lines(box.run("addresses", extra=bare)))
    assert rows["proc2", "cuMemAlloc", 12000, 0]["file"] == DRIVERS
