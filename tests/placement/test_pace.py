"""Filters give way to binds that write, for a moment at most; pods without devices never do."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest

from hami.placement import pace
from hami.placement.engine import Engine, NodeNames
from hami.placement.pace import Pace
from hami.placement.signals import Signals
from tests.placement.bind_setup import Setup, until
from tests.placement.fakes import FakeClock, container, make_node, make_pod, make_world

LONG_S = 60.0


def writing(found: Pace, count: int) -> ExitStack:
    """So many binds write until the stack is closed."""
    stack = ExitStack()
    for _ in range(count):
        stack.enter_context(found.write())
    return stack


def most() -> int:
    """The number of binds at which filters run ahead."""
    found = Pace(Signals())
    with ExitStack() as stack:
        for number in range(1000):
            if found.ahead:
                return number
            stack.enter_context(found.write())
    raise AssertionError("never ahead")


async def test_a_few_binds_hold_up_no_filter() -> None:
    found = Pace(Signals())
    with writing(found, most() - 1):
        giving = asyncio.create_task(found.give_way())
        await asyncio.sleep(0)
        assert giving.done()


async def test_a_filter_goes_on_when_one_of_many_binds_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_PAUSE_S", LONG_S)
    found = Pace(Signals())
    with writing(found, most() - 1):
        with found.write():
            giving = asyncio.create_task(found.give_way())
            await asyncio.sleep(0)
            assert not giving.done()
        await asyncio.wait_for(giving, LONG_S / 2)
    assert not found.ahead


async def test_a_bind_that_goes_on_to_its_next_write_lets_nobody_past(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_PAUSE_S", LONG_S)
    found = Pace(Signals())
    with writing(found, most() - 1):
        with found.write():
            giving = asyncio.create_task(found.give_way())
            await asyncio.sleep(0)
        with found.write():
            for _ in range(10):
                await asyncio.sleep(0)
            assert not giving.done()
        await asyncio.wait_for(giving, LONG_S / 2)


async def test_a_slow_api_server_holds_up_no_filter_for_long() -> None:
    found = Pace(Signals())
    with writing(found, 10 * most()):
        await asyncio.wait_for(found.give_way(), LONG_S)
        assert found.ahead


@pytest.mark.parametrize(("shares", "waits"), [(1, True), (0, False)], ids=["with devices", "without"])
async def test_only_pods_with_devices_give_way(monkeypatch: pytest.MonkeyPatch, *, shares: int, waits: bool) -> None:
    monkeypatch.setattr(pace, "_PAUSE_S", LONG_S)
    world = make_world(FakeClock())
    world.on_node(make_node("n1"))
    pod = make_pod("p", container(shares))
    with writing(world.pace, most()):
        deciding = asyncio.create_task(Engine(world).filter_sliced(pod, NodeNames.of(["n1"])))
        await asyncio.sleep(0)
        assert deciding.done() is not waits
    answer = await asyncio.wait_for(deciding, LONG_S / 2)
    assert answer.passthrough is not bool(shares)


@pytest.mark.parametrize("write", ["patch_node", "bind"])
async def test_a_bind_counts_while_it_writes(monkeypatch: pytest.MonkeyPatch, write: str) -> None:
    """Its token, and its Binding; one that waits for its node's token counts for nothing."""
    monkeypatch.setattr(pace, "_WRITING", 1)
    setup = Setup()
    setup.own_epoch()
    for name in ("p", "q"):
        setup.reserve(make_pod(name))
    gate = setup.api.gates[write] = asyncio.Event()
    assert not setup.world.pace.ahead
    calls = [asyncio.create_task(setup.bind(name)) for name in ("p", "q")]
    await until(lambda: setup.api.count(write) == 1, write)
    assert setup.world.pace.ahead
    gate.set()
    assert await calls[0] == ""
    await until(lambda: setup.world.signals._waiters, "q waits for p's token")
    assert not setup.world.pace.ahead
    setup.api.serve("default", "p")
    assert await calls[1] == ""
    assert not setup.world.pace.ahead
