"""What a call leaves behind whose write failed while its files were in the making: nothing."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from hami.core.whose_call import Call
from hami.deviceplugin.board import BoardState
from hami.deviceplugin.container_setup import ContainerSetup
from hami.sim.apiserver.faults import Fault
from tests.deviceplugin.bench import A, Bench
from tests.deviceplugin.test_allocate import ONE, refused


async def seen_pod_whose_erase_fails(node: Bench, **settings: Any) -> None:
    """The view names the pod; its erase is answered with an error, and so is the look whether it was done."""
    await node.start_plugin(**settings)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    node.api.faults.add(Fault("internal-error", verb="patch", resource="pods"))
    node.api.faults.add(Fault("internal-error", verb="get", resource="pods"))


async def test_files_that_are_being_made_are_waited_for(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet may ask again for the same container: two must not write its folder at once."""
    begun, may_end, told = asyncio.Event(), asyncio.Event(), list[str]()

    async def slow(*_: object) -> Any:
        begun.set()
        try:
            await may_end.wait()
            told.append("made")
        except asyncio.CancelledError:
            told.append("cut off")
            raise

    await seen_pod_whose_erase_fails(node, allocate_timeout_s=60.0)
    monkeypatch.setattr(ContainerSetup, "prepare", slow)
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(begun.is_set, "the files' begin")
    await node.until(lambda: any(each.verb == "get" and each.resource == "pods" for each in node.api.seen), "the look")
    assert not call.done()
    may_end.set()
    assert "the API server" in await refused(call)
    assert told == ["made"]


async def test_files_that_cannot_be_made_are_no_error_that_nobody_takes(
    node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: lost.append(str(context["message"])))

    async def broken(_: ContainerSetup, _call: Call, _state: BoardState) -> Any:
        raise OSError("the disk is full")

    await seen_pod_whose_erase_fails(node, allocate_timeout_s=60.0)
    monkeypatch.setattr(ContainerSetup, "prepare", broken)
    assert "the API server" in await refused(node.kubelet.allocate([f"{A}-0"]))
    gc.collect()
    assert lost == []


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
