"""A late view never serves a stranger: random histories in virtual time against the rule, asked when the write lands.

2,500 histories in CI, ten times that in soak. The writers are lawful (view_world.py); the view hears of them late,
partly, or by a list that was made earlier. Each kind of history that makes a cache dangerous is also told by hand, with
the guard taken away as the control.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING
from hami.core.objects import Node
from hami.deviceplugin.node_view import NodeView
from hami.vendors.nvidia.names import TO_ALLOCATE_KEY
from tests.deviceplugin.fuzz_world import SOAK
from tests.deviceplugin.view_world import NAMES, SHARES, World

pytestmark = pytest.mark.usefixtures("quiet_logs")

names = st.sampled_from(NAMES)
kinds = st.sampled_from(sorted(SHARES))
writes = st.one_of(
    st.tuples(st.just("bind"), names, kinds),
    st.tuples(st.just("end"), names, st.sampled_from(["Failed", "Failed", "Running", "Succeeded"])),
    st.tuples(st.just("delete"), names, st.booleans()),
    st.tuples(st.just("touch"), names),
)
hearing = st.one_of(
    st.tuples(st.just("hear"), st.integers(0, 3), st.integers(0, 3)),
    st.just(("hear_all",)),
    st.just(("list_begins",)),
    st.just(("list_arrives",)),
)
amid = st.lists(st.one_of(writes, hearing, st.tuples(st.just("wait"), st.floats(0, 2))), max_size=2)
handed = st.tuples(st.just("hand over"), names, kinds, st.booleans(), st.integers(0, 3), st.integers(0, 3))
"""A Binding of which the watches tell something at once, after all that was before or without."""
steps = st.one_of(
    handed,
    handed,
    handed,
    st.tuples(st.just("succeed"), st.sampled_from(["Failed", "Succeeded", ""]), names, kinds),
    writes,
    hearing,
    st.just(("hear_all",)),
    st.tuples(st.just("ask"), st.integers(0, 1), st.lists(amid, max_size=4)),
    st.tuples(st.just("ask"), st.just(0), st.lists(amid, max_size=2)),
    st.tuples(st.just("ask"), st.just(0), st.just([])),
    st.tuples(st.just("ask twice"), st.lists(amid, max_size=4)),
    st.just(("heartbeat",)),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 10.0, 30.0, 100.0, 310.0])),
)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def plain(world: World, step: tuple[Any, ...]) -> None:
    """A step that takes no time of the plugin's."""
    what, *how = step
    if what == "wait":
        world.now_s += how[0]
    elif what == "hand over":
        if how[2]:
            world.hear_all()
        world.bind(*how[:2])
        world.hear(*how[3:])
    elif what == "delete":
        world.delete(how[0], kubelet_knows=how[1])
    else:
        getattr(world, what)(*how)


def _next_of(world: World, parts: Iterator[list[tuple[Any, ...]]]) -> None:
    for step in next(parts, []):
        plain(world, step)


async def history(world: World, told: list[tuple[Any, ...]]) -> None:
    await world.begin()
    for step in told:
        what, *how = step
        if what in ("ask", "ask twice"):
            world.between = functools.partial(_next_of, world, iter(how[-1]))
            # Kubelet never asks twice for one container: then only the rule is compared, not whom it was for.
            world.lawful &= what == "ask"
            await asyncio.gather(*(world.ask(at) for at in ([how[0]] if what == "ask" else [0, 0])))
            world.between = lambda: None
        elif what == "heartbeat":
            await world.heartbeat()
        else:
            plain(world, step)
    await world.allocator.drain()
    assert not world.wrong, world.wrong


def test_a_late_view_serves_no_stranger(loop: asyncio.AbstractEventLoop) -> None:
    unread = 0

    @settings(max_examples=2500 * SOAK, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(told=st.lists(steps, min_size=4, max_size=25))
    def run(told: list[tuple[Any, ...]]) -> None:
        nonlocal unread
        world = World()
        loop.run_until_complete(history(world, told))
        unread += world.unread

    run()
    assert unread > 200, "the view has served, too"


# --- by hand -------------------------------------------------------------------------------------------------------


async def a_is_deleted_and_b_has_the_token(world: World) -> str:
    world.bind("p0", "one")
    world.hear_all()
    world.delete("p0")
    world.bind("p1", "one")
    return "p1"


async def a_failed_and_b_has_the_token(world: World) -> str:
    world.bind("p0", "one")
    world.hear_all()
    world.end("p0", "Failed")
    world.bind("p1", "one")
    return "p1"


async def the_token_was_freed_and_taken_again_by_a_namesake(world: World) -> str:
    world.bind("p0", "one")
    world.hear_all()
    world.delete("p0")
    world.now_s += 1
    world.bind("p0", "other")
    return "p0"


async def watches_are_ten_seconds_late(world: World) -> str:
    world.bind("p0", "one")
    world.hear_all()
    await world.ask()
    world.end("p0", "Running")
    world.now_s += 10
    world.bind("p1", "one")
    return "p1"


async def a_list_that_was_made_before_arrives_after(world: World) -> str:
    world.bind("p0", "one")
    world.hear_all()
    world.list_begins()
    world.end("p0", "Failed")
    world.bind("p1", "one")
    world.hear(9, 9)
    world.list_arrives()
    return "p1"


async def a_has_lost_its_turn_by_time(world: World) -> str:
    world.bind("p0", "one")
    world.hear_all()
    await world.heartbeat()
    world.now_s += 301
    world.kubelet.clear()
    world.bind("p1", "one")
    return "p1"


DANGERS = [
    a_is_deleted_and_b_has_the_token,
    a_failed_and_b_has_the_token,
    the_token_was_freed_and_taken_again_by_a_namesake,
    watches_are_ten_seconds_late,
    a_list_that_was_made_before_arrives_after,
    a_has_lost_its_turn_by_time,
]


async def told(danger: Callable[[World], Coroutine[Any, Any, str]], world: World) -> None:
    """Kubelet asks for the pod that `danger` ends with; `wrong` says who got whose."""
    await world.begin()
    uid = world.api.pods[f"default/{await danger(world)}"].metadata.uid
    world.lawful = True
    await world.call(uid, [1])
    await world.allocator.drain()
    if (uid, 0) not in world.answered:
        world.wrong.append(f"{uid} was refused")


@pytest.mark.parametrize("danger", DANGERS)
async def test_a_danger_is_met_by_a_live_read(danger: Callable[[World], Coroutine[Any, Any, str]]) -> None:
    world = World()
    await told(danger, world)
    assert world.wrong == []


class Patient(NodeView):
    """Believes a token for ever."""

    def _young(self, node: Node) -> bool:
        return True


async def test_without_the_guard_of_time_a_lost_turn_serves_a_stranger() -> None:
    world = World(Patient)
    await told(a_has_lost_its_turn_by_time, world)
    assert "given what is" in " ".join(world.wrong)


async def test_without_the_version_a_pod_that_failed_is_served_for_another() -> None:
    world = World()
    world.api.careless = True
    await told(a_failed_and_b_has_the_token, world)
    assert "given what is" in " ".join(world.wrong)


async def test_two_calls_at_once_for_two_containers_each_get_theirs() -> None:
    world = World()
    await world.begin()
    world.bind("p0", "two containers")
    world.hear_all()
    await asyncio.gather(world.ask(), world.ask())
    assert sorted(index for _, index in world.answered) == [0, 1]
    assert (world.wrong, world.unread) == ([], 2)


async def test_two_calls_at_once_for_one_container_serve_one() -> None:
    world = World()
    await world.begin()
    world.bind("p0", "one")
    world.hear_all()
    await asyncio.gather(world.ask(), world.ask())
    assert len(world.answered) == 1
    assert (world.wrong, world.unread) == ([], 1)


async def test_a_second_candidate_is_a_question_for_the_api_server() -> None:
    """The token's pod is served all the same, by a live read."""
    world = World()
    await world.begin()
    world.bind("p0", "one")
    pod = world.api.pods["default/p0"]
    world.put_node({NODE_LOCK: None})
    world.bind("p1", "one")
    world.hear_all()
    await world.call(world.api.pods["default/p1"].metadata.uid, [1])
    assert (world.wrong, world.unread) == ([], 0)
    assert world.api.pods["default/p0"] == pod
    assert pod.annotations[BIND_PHASE] == PHASE_ALLOCATING
    assert pod.annotations[TO_ALLOCATE_KEY] == SHARES["one"]
