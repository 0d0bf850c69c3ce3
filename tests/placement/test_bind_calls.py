"""Bind calls that are called off, and those that have begun to write."""

from __future__ import annotations

import asyncio

import pytest

from hami.placement.names import NodeNames
from tests.placement.bind_setup import Setup
from tests.placement.fakes import (
    annotated,
    make_pod,
)
from tests.tools.waiting import until


async def waiting_call(setup: Setup) -> asyncio.Task[str]:
    setup.own_epoch()
    setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    setup.reserve(make_pod("p"))
    setup.lock("o")
    task = asyncio.create_task(setup.bind())
    await until(lambda: setup.world.signals._waiters, "waiting")
    return task


async def test_client_gone_before_the_first_write_leaves_no_trace(setup: Setup) -> None:
    task = await waiting_call(setup)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: setup.world.in_flight.get("uid-p") is None, "nobody waits any more")
    setup.api.serve("default", "o")
    await setup.binder.drain()
    assert setup.api.count("patch_node") == 0
    assert setup.binder._queues.waiting("n1") == 0
    assert setup.world.in_flight.get("uid-p") is None


async def test_client_gone_at_once_leaves_nothing_half_done(setup: Setup) -> None:
    """The work may have begun to write by then: it is done as a whole or not at all."""
    setup.reserve(make_pod("p"))
    task = asyncio.create_task(setup.bind())
    asyncio.get_running_loop().call_soon(task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(setup.binder.drain(), 60.0)
    assert setup.world.in_flight.get("uid-p") is None
    assert bool(setup.api.lock("n1")) == (setup.api.pod("p").spec.node_name == "n1")


async def test_new_term_lists_the_node_again(setup: Setup) -> None:
    setup.strange_epoch()
    for name in ("p", "q"):
        setup.reserve(make_pod(name))
        setup.binder.new_term()
        setup.clock.advance(1)
        assert await setup.bind(name) == ""
        setup.api.serve("default", name)
    assert setup.api.count("list_pods") == 2


@pytest.mark.parametrize("why", ["filter", "leadership", "deleted", "bind again"])
async def test_waiting_call_is_called_off(setup: Setup, why: str) -> None:
    task = await waiting_call(setup)
    match why:
        case "filter":
            assert setup.engine.filter(setup.api.pod("p"), NodeNames.of(["n2"])).node == "n2"
        case "leadership":
            setup.binder.leadership_lost()
        case "deleted":
            setup.api.delete_pod("default", "p")
        case "bind again":
            again = asyncio.create_task(setup.bind())
    assert "called off" in await task
    assert setup.api.count("patch_node") == 0
    if why == "bind again":
        setup.api.serve("default", "o")
        assert await again == ""


@pytest.mark.parametrize("gate", ["patch_node", "bind"])
async def test_call_that_has_begun_to_write_runs_to_its_end(setup: Setup, gate: str) -> None:
    setup.own_epoch()
    pod = setup.reserve(make_pod("p"))
    setup.api.gates[gate] = asyncio.Event()
    task = asyncio.create_task(setup.bind())
    await until(lambda: (gate, "n1" if gate == "patch_node" else "p") in setup.api.calls, gate)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    setup.binder.leadership_lost()
    assert setup.engine.filter(pod, setup.names).node == "n1"
    joined = asyncio.create_task(setup.bind())
    assert "being bound to node n1" in await setup.bind(node="n2")
    setup.api.gates[gate].set()
    assert await joined == ""
    await setup.binder.drain()
    assert setup.api.pod("p").spec.node_name == "n1"
    assert setup.api.count("bind") == 1
