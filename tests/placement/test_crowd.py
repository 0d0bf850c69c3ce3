"""Nodes with long queues of binds come last until their queues are shorter (issue 6, "no failed binds")."""

from __future__ import annotations

import asyncio

import pytest

from hami.placement.all_fits import AllFits
from hami.placement.bind_error import BindError
from hami.placement.crowd import FIRST_GUESS_S, Crowd
from hami.placement.engine import Engine, NodeNames
from hami.placement.node_queue import NodeQueues
from tests.placement.fakes import FakeClock, annotated, container, make_node, make_pod, make_world

WAIT_S = 25.0


def full_at(crowd: Crowd, wait_s: float = WAIT_S) -> int:
    """The shortest queue that makes a node crowded."""
    for waiting in range(1, 10_000):
        crowd.look("probe", waiting, wait_s)
        if "probe" in crowd.nodes:
            crowd.look("probe", 0, wait_s)
            return waiting
    raise AssertionError("never crowded")


def test_a_queue_is_too_long_when_its_end_would_time_out() -> None:
    crowd = Crowd()
    assert full_at(crowd) * FIRST_GUESS_S < WAIT_S < 2 * full_at(crowd) * FIRST_GUESS_S
    assert "probe" not in crowd.nodes


def test_it_follows_how_long_turns_last() -> None:
    crowd = Crowd()
    before = full_at(crowd)
    for _ in range(30):
        crowd.took("probe", 2.0)
        crowd.took("other", 10.0)
    slow = full_at(crowd)
    for _ in range(60):
        crowd.took("probe", 0.05)
    assert slow < before < full_at(crowd)
    crowd.took("probe", 10_000.0)  # one silent plugin is no measure of the others
    assert full_at(crowd) > 5


async def test_queues_tell_of_it_and_nobody_times_out_of_a_short_one() -> None:
    crowd, clock = Crowd(), FakeClock()
    queues = NodeQueues(crowd, clock)
    leave = asyncio.Event()

    async def wait() -> None:
        async with queues.turn("n1", WAIT_S):
            await leave.wait()

    calls = [asyncio.create_task(wait()) for _ in range(full_at(Crowd()))]
    await asyncio.sleep(0)
    assert crowd.nodes == {"n1"}
    leave.set()
    await asyncio.gather(*calls)
    assert crowd.nodes == set()


async def test_a_call_that_gives_up_is_no_longer_counted() -> None:
    crowd = Crowd()
    queues = NodeQueues(crowd, FakeClock())
    async with queues.turn("n1", WAIT_S):
        with pytest.raises(BindError):
            async with queues.turn("n1", 0.0):
                raise AssertionError("two turns at once")
    assert queues.waiting("n1") == 0
    assert crowd.nodes == set()


def test_a_crowded_node_comes_last_but_is_taken_where_nothing_else_fits() -> None:
    world = make_world(FakeClock())
    engine = Engine(world)
    for name in ("n1", "n2"):
        world.on_node(make_node(name))
    world.on_pod(annotated(make_pod("old"), "n1", "GPU-0,NVIDIA,1000,10:;"))  # binpack prefers n1

    def choice(name: str, *offered: str) -> str | None:
        return engine.filter(make_pod(name, container(1, 100)), NodeNames.of(offered)).node

    assert choice("a", "n1", "n2") == "n1"
    world.crowd.look("n1", 1000, WAIT_S)
    assert choice("b", "n1", "n2") == "n2"
    assert choice("c", "n1") == "n1"
    world.crowd.look("n1", 0, WAIT_S)
    assert choice("d", "n1", "n2") == "n1"


async def test_where_kube_schedulers_own_scores_decide_it_has_the_lowest() -> None:
    world = make_world(FakeClock())
    every_fit = AllFits(world, Engine(world))
    names = ["n1", "n2", "n3"]
    for name in names:
        world.on_node(make_node(name))
    world.on_pod(annotated(make_pod("old"), "n1", "GPU-0,NVIDIA,1000,10:;"))  # binpack prefers n1
    pod = make_pod("p", container(1, 100))
    assert await every_fit.scores(pod, names) == {"n1": 10, "n2": 0, "n3": 0}
    world.crowd.look("n1", 1000, WAIT_S)
    assert await every_fit.scores(pod, names) == {"n1": 0, "n2": 10, "n3": 10}
    assert await every_fit.scores(pod, ["n1"]) == {"n1": 0}
    world.crowd.look("n1", 0, WAIT_S)
    assert await every_fit.scores(pod, names) == {"n1": 10, "n2": 0, "n3": 0}
