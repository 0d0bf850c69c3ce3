"""Refused pods whose room came just after: who is woken, who is not, and that writes stay few."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from hami.core import keys
from hami.core.errors import ApiError
from hami.core.objects import Node
from hami.placement import waking
from hami.placement.engine import Engine, NodeNames
from hami.placement.waking import LAG_S, Waking
from tests.placement.fakes import FakeClock, container, make_node, make_pod, make_world


def nobody_is_gone(_: str) -> bool:
    return False


@pytest.fixture
def sleeper(clock: FakeClock) -> Waking:
    return Waking(clock)


def test_refused_just_before_the_room_came(clock: FakeClock, sleeper: Waking) -> None:
    sleeper.refused("a")
    clock.advance(0.01)
    sleeper.room("n1")
    assert sleeper.overtaken(nobody_is_gone) == "n1"
    assert sleeper.overtaken(nobody_is_gone) == "", "one look, one write"


def test_asked_again_after_the_room_came(clock: FakeClock, sleeper: Waking) -> None:
    sleeper.refused("a")
    sleeper.room("n1")
    clock.advance(0.1)
    sleeper.refused("a")
    assert sleeper.overtaken(nobody_is_gone) == ""


def test_placed_or_gone_meanwhile(sleeper: Waking) -> None:
    for uid in ("placed", "gone"):
        sleeper.refused(uid)
    sleeper.room("n1")
    sleeper.placed("placed")
    assert sleeper.overtaken(lambda uid: uid == "gone") == ""


def test_refused_long_before_is_woken_by_kube_scheduler_itself(clock: FakeClock, sleeper: Waking) -> None:
    sleeper.refused("a")
    clock.advance(LAG_S + 1)
    sleeper.room("n1")
    assert sleeper.overtaken(nobody_is_gone) == ""


def test_room_that_kube_scheduler_cannot_see(clock: FakeClock, sleeper: Waking) -> None:
    sleeper.refused("a")
    clock.advance(100 * LAG_S)
    sleeper.unseen_room("n1")
    assert sleeper.overtaken(nobody_is_gone) == "n1"


def test_without_refused_pods_room_is_no_news(sleeper: Waking) -> None:
    sleeper.room("n1")
    sleeper.unseen_room("n1")
    sleeper.refused("later")
    assert sleeper.overtaken(nobody_is_gone) == ""


def test_of_too_many_the_one_refused_longest_ago_is_forgotten(sleeper: Waking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "_MOST_PODS", 2)
    for uid in ("a", "b", "a", "c"):
        sleeper.refused(uid)
    sleeper.unseen_room("n1")
    assert sleeper.overtaken(lambda uid: uid != "a") == "n1", "refused again, so not the oldest"
    for uid in ("a", "b", "a", "c"):
        sleeper.refused(uid)
    sleeper.unseen_room("n1")
    assert sleeper.overtaken(lambda uid: uid != "b") == ""


class Writes:
    """Nodes written to; with `failing` each write fails."""

    def __init__(self, *, failing: bool = False) -> None:
        self.nodes: list[str] = []
        self.came = asyncio.Event()
        self._failing = failing

    async def patch_node_annotations(self, name: str, annotations: Mapping[str, str | None], _version: str) -> Node:
        assert list(annotations) == [keys.ROOM_FREED]
        self.nodes.append(name)
        self.came.set()
        if self._failing:
            raise ApiError(500, "InternalError", "no")
        return make_node(name)


@pytest.mark.parametrize("failing", [False, True])
async def test_decisions_and_watch_events_end_in_one_write(failing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "SETTLE_S", 0.0)
    world, writes = make_world(), Writes(failing=failing)
    world.on_node(make_node("n1", 1))
    holder = make_pod("holder", container(memory_mib=16000))
    engine, names = Engine(world), NodeNames(b'["n1"]')
    assert engine.filter(holder, names).node == "n1"
    waiting = make_pod("waiting", container(memory_mib=16000))
    task = asyncio.create_task(world.waking.run(writes, world.settle, world.is_gone))
    try:
        assert engine.filter(waiting, names).node is None
        world.on_pod_deleted(holder.metadata.namespace, holder.metadata.name, holder.metadata.uid)
        async with asyncio.timeout(60):
            await writes.came.wait()
        assert engine.filter(waiting, names).node == "n1"
        assert writes.nodes == ["n1"]
        assert not task.done()
    finally:
        task.cancel()
