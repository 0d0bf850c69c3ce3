"""`/filter`: choice, reservation, repeats; rows of the public reports by id."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from hami.core.model import Use
from hami.core.objects import Node, Pod
from hami.placement.engine import Engine
from hami.placement.in_flight import BindCall
from hami.placement.names import NodeNames
from hami.placement.slicer import SLICE_S
from hami.placement.world import World
from tests.placement.fakes import (
    FakeClock,
    annotated,
    card,
    container,
    make_node,
    make_pod,
    make_world,
)
from tests.placement.filtering import SPREAD, add, names


@pytest.fixture
def world(clock: FakeClock) -> World:
    return make_world(clock)


def test_raw_names() -> None:
    raw = NodeNames(b'["n1", "n10","n2"]')
    assert (raw.count, raw.contains("n1"), raw.contains("n"), raw.contains("n3")) == (3, True, False, False)
    assert raw.list() == ["n1", "n10", "n2"]
    assert NodeNames(b"[]").count == 0
    assert NodeNames(b'["\\u006e1"]').contains("n1")
    with pytest.raises(msgspec.DecodeError):
        NodeNames(b'{"n1":1}').contains("n1")


def test_pod_without_devices_passes_through(engine: Engine, world: World) -> None:
    offered = add(world, "n1")
    answer = engine.filter(make_pod("p", container(count=0)), offered)
    assert answer.passthrough
    assert answer.node is None
    assert list(world.ledger.claims()) == []


def test_ties_go_by_node_name_and_binpack_fills(engine: Engine, world: World) -> None:
    offered = add(world, "n3", "n1", "n2")
    assert engine.filter(make_pod("a"), offered).node == "n1"
    assert engine.filter(make_pod("b"), offered).node == "n1"
    assert world.ledger.get("uid-b") is not None


def test_spread_takes_the_emptiest(engine: Engine, world: World) -> None:
    offered = add(world, "n3", "n1", "n2")
    chosen = [engine.filter(make_pod(f"p{number}", annotations=SPREAD), offered).node for number in range(4)]
    assert chosen == ["n1", "n2", "n3", "n1"]


def test_reserves_in_the_same_tick(engine: Engine, world: World) -> None:
    offered = add(world, "n1", cards=1)
    whole = container(memory_mib=16384)
    assert engine.filter(make_pod("a", whole), offered).node == "n1"
    refused = engine.filter(make_pod("b", whole), offered)
    assert refused.node is None
    assert refused.failed == {"n1": "1/1 CardInsufficientMemory"}
    assert refused.unresolvable == refused.failed


def test_only_offered_nodes_are_chosen(engine: Engine, world: World) -> None:
    add(world, *[f"n{number}" for number in range(40)])
    assert engine.filter(make_pod("a"), names("n7", "n31")).node == "n31"
    assert engine.filter(make_pod("b"), names(*[f"x{n}" for n in range(30)], "n8")).node == "n8"
    assert engine.filter(make_pod("c"), names("elsewhere")).failed == {"elsewhere": "node unregistered"}


def test_B34_nodes_without_devices_are_failed_not_fatal(engine: Engine, world: World) -> None:
    add(world, "gpu")
    world.on_node(make_node("cpu", 0, register=""))
    offered = names("gpu", "cpu", "unknown")
    assert engine.filter(make_pod("a"), offered).node == "gpu"
    answer = engine.filter(make_pod("b", container(count=9)), offered)
    assert answer.failed == {
        "gpu": "NodeInsufficientDevice",
        "cpu": "node unregistered",
        "unknown": "node unregistered",
    }


def test_B26_failing_repeat_for_a_running_pod_changes_nothing(engine: Engine, world: World) -> None:
    offered = add(world, "n1", cards=2)
    running = annotated(make_pod("p", container(count=2)), "n1", "GPU-0,NVIDIA,16384,100:GPU-1,NVIDIA,16384,100:;")
    world.on_pod(running)
    before = dict(world.ledger.uses("n1"))
    again = engine.filter(make_pod("p", container(count=2)), names("n9"))
    assert again.node is None
    assert "already bound to node n1" in again.error
    assert world.ledger.uses("n1") == before
    assert engine.filter(make_pod("q"), offered).node is None


def test_B28_repeat_filter_keeps_the_card(engine: Engine, world: World) -> None:
    offered = add(world, "n1", "n2")
    pod = make_pod("p")
    assert engine.filter(pod, offered).node == "n1"
    call = BindCall("default", "p", "uid-p", "n1")
    call.writing = True
    world.in_flight.add(call)
    claim = world.ledger.get("uid-p")
    assert claim is not None
    claim.pinned = True
    assert engine.filter(pod, offered).node == "n1"
    assert world.ledger.get("uid-p") is claim
    world.in_flight.remove(call)
    bound = annotated(pod, "n1", "GPU-1,NVIDIA,1000,0:;", phase="success")
    world.on_pod(bound)
    assert engine.filter(bound, offered).node == "n1"
    assert engine.filter(pod, offered).node == "n1"
    assert dict(world.ledger.uses("n1")) == {"GPU-1": Use(1, 1000, 0)}


def test_B52_second_filter_moves_the_reservation(engine: Engine, world: World) -> None:
    add(world, "n1", "n2")
    assert engine.filter(make_pod("p"), names("n1")).node == "n1"
    assert engine.filter(make_pod("p"), names("n2")).node == "n2"
    assert (dict(world.ledger.uses("n1")), len(world.ledger.uses("n2"))) == ({}, 1)
    assert engine.filter(make_pod("p"), names("n9")).node is None
    assert (dict(world.ledger.uses("n1")), dict(world.ledger.uses("n2"))) == ({}, {})


def test_bad_input_is_unschedulable_and_told_once(engine: Engine, world: World) -> None:
    offered = add(world, "n1")
    pod = make_pod("p", annotations={"hami.io/device-scoring-weights": "slot=1"})
    answer = engine.filter(pod, offered)
    assert (answer.error, list(answer.failed)) == ("", ["n1"])
    assert "device-scoring-weights" in answer.failed["n1"]
    assert len(answer.events) == 1
    assert engine.filter(pod, offered).events == ()


def test_B29_two_containers_of_one_pod_do_not_share_a_full_card(engine: Engine, world: World) -> None:
    world.on_node(make_node("n1", [card(0, memory_mib=10240), card(1, memory_mib=10240)]))
    pod = make_pod("p", container(memory_mib=10240), container(memory_mib=1024))
    assert engine.filter(pod, names("n1")).node == "n1"
    claim = world.ledger.get("uid-p")
    assert claim is not None
    assert claim.fit is not None
    first, second = claim.fit.allocation["NVIDIA"]
    assert first[0].device_id != second[0].device_id


def test_B32_sidecar_is_placed_beside_the_app(engine: Engine, world: World) -> None:
    world.on_node(make_node("small", [card(0, memory_mib=10000)]))
    world.on_node(make_node("large", [card(0, memory_mib=16000)]))
    pod = make_pod("p", container(memory_mib=6000), init=(container(memory_mib=6000, restart="Always"),))
    assert engine.filter(pod, names("small")).node is None
    assert engine.filter(pod, names("small", "large")).node == "large"


@pytest.mark.parametrize("restarts", [1, 3])
def test_same_state_and_request_give_the_same_answer_after_restarts(restarts: int) -> None:
    def decide(order: list[str]) -> list[tuple[str | None, tuple[tuple[str, Use], ...]]]:
        world = make_world()
        for name in order:
            world.on_node(make_node(name, 4))
        for number, name in enumerate(sorted(order)):
            world.on_pod(annotated(make_pod(f"old{number}"), name, f"GPU-{number % 4},NVIDIA,{number % 3},5:;"))
        engine = Engine(world)
        chosen = []
        for number in range(20):
            answer = engine.filter(
                make_pod(f"p{number}", container(count=1 + number % 3, memory_mib=500)), names(*order)
            )
            claim = world.ledger.get(f"uid-p{number}")
            assert claim is not None
            chosen.append((answer.node, claim.charges))
        return chosen

    order = [f"n{number}" for number in range(12)]
    expected = decide(order)
    for _ in range(restarts):
        order = order[5:] + order[:5]
        assert decide(order) == expected


async def test_sliced_filter_decides_the_same(engine: Engine, world: World) -> None:
    offered = add(world, "n1", "n2", cards=1)
    full = make_pod("p", container(memory_mib=20000))
    assert (await engine.filter_sliced(full, offered)).failed == engine.filter(full, offered).failed
    assert (await engine.filter_sliced(make_pod("q"), offered)).node == "n1"


async def test_simulation_is_stateless(engine: Engine, world: World) -> None:
    add(world, "n1", cards=1)
    pod = make_pod("p", container(memory_mib=16384))
    assert engine.filter(pod, names("n1")).node == "n1"
    nodes = [make_node("n3", 1), make_node("n1", 1), make_node("cpu", register=""), make_node("bad", register="[")]
    other = make_pod("q", container(memory_mib=16384))
    answer = await engine.simulate(other, nodes)
    assert (answer.node, answer.feasible) == ("n1", ("n1",))
    assert set(answer.failed) == {"cpu", "bad"}
    assert (await engine.simulate(other, nodes, all_feasible=True)).feasible == ("n1", "n3")
    assert (await engine.simulate(make_pod("r", container(count=0)), nodes)).passthrough
    assert (await engine.simulate(make_pod("s", container(count=3)), nodes)).failed["n1"] == "NodeInsufficientDevice"
    assert world.ledger.get("uid-q") is None


async def test_simulation_gives_way_between_nodes(engine: Engine, clock: FakeClock) -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def nodes() -> Iterator[Node]:
        for number in range(50):
            clock.advance(2 * SLICE_S)
            yield make_node(f"n{number}")

    task = asyncio.create_task(other())
    assert (await engine.simulate(make_pod("p"), nodes())).node == "n0"
    task.cancel()
    assert turns >= 50


def test_B43_deleted_node_is_not_chosen(engine: Engine, world: World) -> None:
    offered = add(world, "n1", "n2")
    world.on_node_deleted("n1")
    assert engine.filter(make_pod("p"), offered).node == "n2"
    world.on_node(make_node("n1", 1, uid="new"))
    assert engine.filter(make_pod("q"), names("n1")).node == "n1"


def test_pod_that_names_its_node_keeps_it(engine: Engine, world: World) -> None:
    offered = add(world, "n1", "n2")
    pod = make_pod("p")
    preset: Pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name="n2"))
    assert engine.filter(preset, offered).node == "n2"
    assert world.ledger.get("uid-p") is None


def test_B44_node_comes_back_when_kubelet_offers_cards_again(engine: Engine, world: World) -> None:
    world.on_node(make_node("n1", allocatable=20, version=1))
    world.on_node(make_node("n1", allocatable=0, version=2))
    assert "allocatable" in engine.filter(make_pod("p"), names("n1")).failed["n1"]
    world.on_node(make_node("n1", allocatable=20, version=3))
    assert engine.filter(make_pod("p"), names("n1")).node == "n1"


def test_pod_that_is_gone_gets_no_reservation(engine: Engine, world: World) -> None:
    offered = add(world, "n1")
    world.on_pod_deleted("default", "p", "uid-p")
    assert "gone" in engine.filter(make_pod("p"), offered).error
    assert dict(world.ledger.uses("n1")) == {}
