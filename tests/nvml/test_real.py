"""The driver's side without a driver: time limits, failures, NUMA text. With a GPU the cards are read for real."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pynvml
import pytest

from hami.core.errors import NvmlError
from hami.nvml.caller import Caller
from hami.nvml.real import RealProbe, load_library, read_numa


def driver_present() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


@pytest.mark.skipif(driver_present(), reason="a driver is here")
async def test_without_a_driver_every_question_is_an_nvml_error() -> None:
    probe = RealProbe()
    for ask in (probe.cards, probe.pairs, probe.lost, probe.processes, probe.loads):
        with pytest.raises(NvmlError):
            await ask()
    with pytest.raises(NvmlError):
        await probe.events(0.1)
    await probe.close()


@pytest.mark.skipif(not driver_present(), reason="needs a GPU with its driver")
async def test_cards_of_this_machine() -> None:
    probe = RealProbe()
    cards = (await probe.cards()).cards
    assert cards
    assert all(card.uuid.startswith("GPU-") and card.memory_bytes for card in cards)
    assert await probe.lost() == {}
    loads = await probe.loads()
    assert [load.uuid for load in loads] == [card.uuid for card in cards]
    assert all(load.gpu_percent is not None and 0 <= load.gpu_percent <= 100 for load in loads)
    assert await probe.events(0.1) == ()
    await probe.close()


async def test_a_call_that_hangs_costs_one_thread_and_its_time_limit() -> None:
    caller = Caller("test")
    hang = threading.Event()
    started = time.monotonic()
    with pytest.raises(NvmlError, match=r"memory: no answer of the driver within 0\.05 s"):
        await caller.call("memory", hang.wait, 0.05)
    assert await caller.call("name", lambda: "fine", 120) == "fine"
    assert time.monotonic() - started < 60
    hang.set()
    caller.close()


async def test_a_driver_that_always_hangs_is_given_up() -> None:
    caller = Caller("test")
    hang = threading.Event()
    for _ in range(8):
        with pytest.raises(NvmlError, match="no answer"):
            await caller.call("x", hang.wait, 0.01)
    with pytest.raises(NvmlError, match="the driver hangs"):
        await caller.call("x", lambda: None, 60)
    hang.set()
    async with asyncio.timeout(60):
        while True:
            try:
                await caller.call("x", lambda: None, 60)
                break
            except NvmlError:
                await asyncio.sleep(0.01)
    caller.close()


async def test_errors_of_the_call_reach_the_caller() -> None:
    caller = Caller("test")

    def fail() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        await caller.call("x", fail, 60)
    caller.close()


@pytest.mark.parametrize(
    ("bus_id", "folder", "content", "expected"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0", "1\n", 1),
        ("0000:3b:00.0", "0000:3b:00.0", "0\n", 0),
        ("00000000:3B:00.0", "0000:3b:00.0", "-1\n", -1),
        ("00000000:3B:00.0", "0000:3b:00.0", "N/A", -1),
        ("00000000:3B:00.0", "0000:3b:00.0", None, -1),
        ("0000000F:01:00.0", "000f:01:00.0", "0\n", 0),
        ("00010000:E1:00.0", "10000:e1:00.0", "1\n", 1),
        ("00010000:E1:00.0", "0000:e1:00.0", "1\n", -1),
        ("zz:01:00.0", "0000:01:00.0", "1\n", -1),
        ("", "0000:01:00.0", "1\n", -1),
    ],
)
def test_numa_node_from_sysfs(tmp_path: Path, bus_id: str, folder: str, content: str | None, expected: int) -> None:
    device = tmp_path / folder
    device.mkdir()
    if content is not None:
        (device / "numa_node").write_text(content)
    assert read_numa(tmp_path, bus_id) == expected


async def test_a_container_without_the_library_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", init)
    probe = RealProbe(driver_root=tmp_path)
    with pytest.raises(NvmlError) as refusal:
        await probe.cards()
    for word in ("libnvidia-ml.so.1", str(tmp_path), "devicePlugin.runtimeClassName", "devicePlugin.nvidiaDriverRoot"):
        assert word in str(refusal.value)
    await probe.close()


def test_a_driver_root_without_the_library_is_no_error(tmp_path: Path) -> None:
    assert load_library(tmp_path) is None
    broken = tmp_path / "usr/lib64/libnvidia-ml.so.1"
    broken.parent.mkdir(parents=True)
    broken.write_text("no library")
    assert load_library(tmp_path) is None
