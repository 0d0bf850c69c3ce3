"""What a call leaves behind whose write failed while its files were in the making: nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami.core.errors import ApiError
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.work_list import WorkList
from hami.sim.apiserver.faults import Fault
from tests.deviceplugin.bench import A, Bench
from tests.deviceplugin.calls import ONE, refused


async def test_files_that_are_being_made_are_waited_for(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet may ask again for the same container: two must not write its folder at once."""
    begun, failed, may_end, told = asyncio.Event(), asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(*_: object) -> Any:
        begun.set()
        try:
            await may_end.wait()
            told.append("made")
        except asyncio.CancelledError:
            told.append("cut off")
            raise

    async def fails(*_: object) -> bool:
        await begun.wait()
        failed.set()
        raise ApiError(500, "InternalError", "no")

    await node.start_plugin(allocate_timeout_s=60.0)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    monkeypatch.setattr(ContainerSetup, "prepare", slow)
    monkeypatch.setattr(WorkList, "erase_if_seen_right", fails)
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(failed.is_set, "the erase")
    may_end.set()
    assert "the API server" in await refused(call)
    assert told == ["made"]


async def test_a_call_out_of_time_leaves_no_files_in_the_making(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    making: set[str] = set()
    ended: list[str] = []

    async def stuck(*_: object) -> Any:
        making.add("p1")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            making.discard("p1")
            ended.append("p1")

    await node.start_plugin(allocate_timeout_s=1.0)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=300, times=1))
    monkeypatch.setattr(ContainerSetup, "prepare", stuck)
    assert "not done within 1 s" in await refused(node.kubelet.allocate([f"{A}-0"]))
    assert (making, ended) == (set(), ["p1"])
