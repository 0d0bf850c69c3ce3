"""Objects as they were earlier, shown after what came later: reads answered late, watches doubled and out of order.

Reads of a bind and watch events come by different connections. What a pod or node was before its end, its replacement
or its newest version says nothing any more (issue 6: watches late, doubled, reordered).
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import msgspec
import pytest

from hami.core import keys
from hami.core.errors import ApiError, TransportError
from hami.core.objects import Node, Pod
from hami.placement.claims import ClaimState
from hami.placement.names import NodeNames
from hami.placement.world import World
from tests.placement.bind_setup import Setup
from tests.placement.fakes import (
    FakeClock,
    annotated,
    card,
    container,
    deleted,
    init_ended,
    make_node,
    make_pod,
    make_world,
    unscheduled,
    with_phase,
)
from tests.tools.waiting import until

TEXT = "GPU-0,NVIDIA,1000,0:;"


@pytest.fixture
def world() -> World:
    world = make_world(FakeClock())
    world.on_node(make_node("n1"))
    return world


def at_version(pod: Pod, version: int) -> Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, resource_version=str(version)))


def life(last: Pod | None = None) -> list[Pod]:
    """One pod from creation to its end, each state newer than the one before."""
    pod = make_pod("p", container(memory_mib=1000), init=(container(memory_mib=9000, name="i"),))
    bound = annotated(pod, "n1", "GPU-0,NVIDIA,9000,0:;GPU-0,NVIDIA,1000,0:;", phase="allocating")
    served = annotated(pod, "n1", "GPU-0,NVIDIA,9000,0:;GPU-0,NVIDIA,1000,0:;", phase="success")
    states = [pod, bound, served, with_phase(init_ended(served), "Running")]
    return [at_version(each, number) for number, each in enumerate(states + ([last] if last else []), start=10)]


def memory_mib(world: World) -> int:
    return sum(use.memory_mib for use in world.ledger.uses("n1").values())


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_newest_state_counts_in_whatever_order_states_come(world: World, order: tuple[int, ...]) -> None:
    states = life()
    for place in order:
        world.on_pod(states[place])
    assert memory_mib(world) == 1000
    claim = world.ledger.get("uid-p")
    assert claim is not None
    assert claim.phase == keys.PHASE_SUCCESS


@pytest.mark.parametrize("late", range(4))
@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_a_finished_pod_held_does_not_come_back(world: World, phase: str, late: int) -> None:
    states = life(with_phase(life()[3], phase))
    for state in [*states, states[late], states[late]]:
        world.on_pod(state)
    assert memory_mib(world) == 0
    world.node_pods_listed("n1", [states[late]], world.ledger.uids_on("n1"))
    assert memory_mib(world) == 0


async def test_a_complete_list_is_believed_where_it_brings_a_finished_pod_back(world: World) -> None:
    """etcd was restored from a backup."""
    states = life(with_phase(life()[3], "Succeeded"))
    for state in states:
        world.on_pod(state)
    listing = world.pod_listing()
    await listing.take([states[2]])
    await listing.complete()
    assert memory_mib(world) == 9000


@pytest.mark.parametrize("held", [False, True], ids=["successor waits", "successor holds a card"])
def test_a_replaced_pod_does_not_come_back(world: World, held: bool) -> None:
    """The deletion was never shown; its successor of the same name was."""
    states = life()
    world.on_pod(states[2])
    fresh = at_version(make_pod("p", container(memory_mib=500), uid="successor"), 20)
    world.on_pod(at_version(annotated(fresh, "n1", "GPU-1,NVIDIA,500,0:;"), 20) if held else fresh)
    world.on_pod(states[3])
    world.on_pod_deleted("default", "p", "uid-p")
    assert memory_mib(world) == (500 if held else 0)


def test_the_predecessor_is_not_filtered_any_more() -> None:
    """kube-scheduler still asks about the pod that was replaced."""
    setup = Setup()
    old = setup.reserve(make_pod("p"))
    setup.api.put_pod(make_pod("p", uid="successor"))
    answer = setup.engine.filter(old, NodeNames.of(["n1"]))
    assert (answer.node, answer.error) == (None, "pod default/p is gone")
    setup.assert_free()


def nodes_life() -> dict[str, Node]:
    return {
        "old": make_node("n1", [card(0, node="old")], uid="first", version=10),
        "older": make_node("n1", [card(0, node="older")], uid="first", version=9),
        "new": make_node("n1", [card(0, node="new")], uid="second", version=20),
    }


@pytest.mark.parametrize(
    ("news", "cards"),
    [
        (["old", "older"], ["GPU-old0"]),
        (["old", "-first", "old"], None),
        (["old", "-first", "old", "new"], ["GPU-new0"]),
        (["old", "-first", "new", "old"], ["GPU-new0"]),
        (["old", "new", "-first"], ["GPU-new0"]),
        (["old", "new", "old"], ["GPU-new0"]),
        (["old", "new", "old", "-first", "new"], ["GPU-new0"]),
        (["old", "new", "-second"], None),
        (["old", "new", "-second", "new"], None),
    ],
    ids=str,
)
def test_the_newest_node_of_a_name_counts(news: list[str], cards: list[str] | None) -> None:
    """A bind reads a node live before the watch has told that it was made anew. `-uid` is a deletion."""
    world = make_world(FakeClock())
    found = nodes_life()
    for each in news:
        if each.startswith("-"):
            world.on_node_deleted("n1", each[1:])
        else:
            world.on_node(found[each])
    world.settle_now()
    view = world.view("n1")
    assert (None if view is None else [device.id for device in view.state.devices]) == cards


def finalizing(pod: Pod) -> Pod:
    """Deleted, and kept by a finalizer: the object stays."""
    return deleted(pod)


@pytest.mark.parametrize("announced", [False, True], ids=["reserved", "annotated"])
def test_an_unbound_pod_that_is_being_deleted_holds_nothing(announced: bool) -> None:
    """kube-apiserver binds no such pod, and a finalizer may keep it for long."""
    setup = Setup()
    if announced:
        stamp = {keys.VGPU_TIME: str(int(setup.clock.unix_s()))}
        pod = setup.api.put_pod(annotated(make_pod("p"), "n1", TEXT, bound=False, **stamp))
    else:
        pod = setup.reserve(make_pod("p"))
    assert setup.world.ledger.uses("n1")
    going = setup.api.put_pod(finalizing(pod))
    setup.assert_free()
    setup.world.on_pod(going)
    answer = setup.engine.filter(going, NodeNames.of(["n1"]))
    assert (answer.node, answer.error) == (None, "pod default/p is being deleted")
    setup.assert_free()


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_a_pod_that_has_ended_is_not_filtered(phase: str) -> None:
    setup = Setup()
    pod = setup.reserve(make_pod("p"))
    answer = setup.engine.filter(with_phase(pod, phase), NodeNames.of(["n1"]))
    assert (answer.node, answer.error) == (None, f"pod default/p has ended ({phase})")
    setup.assert_free()


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("moment", ["before the token", "before the Binding"])
async def test_a_bind_of_a_pod_that_is_being_deleted_gives_everything_back(moment: str, seen: bool) -> None:
    setup = Setup()
    setup.own_epoch()
    pod = setup.reserve(make_pod("p"))
    world, setup.api.world = setup.api.world, setup.world if seen else None
    assert world is not None

    def delete() -> None:
        setup.api.put_pod(finalizing(pod))

    setup.api.hooks["patch_node" if moment == "before the token" else "bind", "before"] = delete
    assert await setup.bind() == "pod default/p is being deleted"
    assert setup.api.lock("n1") == ""
    setup.assert_free()


@pytest.mark.parametrize("bound", [False, True])
def test_a_bound_pod_that_is_being_deleted_keeps_its_cards_until_it_is_gone(world: World, bound: bool) -> None:
    """Its containers may run on for the grace period: the negative control of the tests above."""
    pod = annotated(make_pod("p"), "n1", TEXT, bound=bound)
    world.on_pod(deleted(pod))
    assert memory_mib(world) == (1000 if bound else 0)
    world.on_pod_deleted("default", "p", "uid-p")
    assert memory_mib(world) == 0


@pytest.mark.parametrize("binds", [True, False])
@pytest.mark.parametrize("stamp", ["2027-01-15T08:00:05Z", "2027-01-15T07:59:00Z"], ids=["newer", "older"])
async def test_a_pod_given_up_while_its_binding_was_out_holds_nothing_if_that_fails(stamp: str, binds: bool) -> None:
    """kube-scheduler lost patience; if its other filters refuse the pod from now on, nobody asks us about it again."""
    setup = Setup()
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    setup.api.hooks["bind", "before"] = lambda: setup.api.put_pod(unscheduled(setup.api.pod("p"), stamp))
    if not binds:
        setup.api.faults["bind", "before"] = [ApiError(403, "Forbidden", "no")]
    assert await setup.bind() == ("" if binds else "no")
    claim = setup.world.ledger.get("uid-p")
    given_up = stamp > "2027-01-15T08"
    assert (claim.state if claim else None) == (
        ClaimState.BOUND if binds else None if given_up else ClaimState.RESERVED
    )


Change = Callable[[Pod], Pod]


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (lambda pod: unscheduled(pod, "2027-01-15T08:00:05Z"), ClaimState.RESERVED),
        (lambda pod: annotated(pod, "n2", TEXT, bound=False), ClaimState.RESERVED),
        (lambda pod: with_phase(pod, "Failed"), None),
    ],
    ids=["condition", "another allocation", "the end"],
)
def test_states_of_before_the_filter_do_not_end_a_reservation(change: Change, state: ClaimState | None) -> None:
    """But an end is an end, whatever version says so."""
    setup = Setup()
    pod = setup.reserve(make_pod("p"))
    setup.world.on_pod(at_version(change(pod), 1))
    claim = setup.world.ledger.get("uid-p")
    assert (claim.state if claim else None) == state


async def test_a_server_that_asks_for_a_long_pause_gets_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's token waits with the Binding, and kube-scheduler waits for the answer."""
    setup = Setup()
    setup.own_epoch()
    setup.reserve(make_pod("p"))
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    setup.api.faults["bind", "before"] = [ApiError(429, "TooManyRequests", "later", 3600.0), TransportError("reset")]
    assert await setup.bind() == ""
    assert max(pauses) == 5.0


@pytest.mark.parametrize("end", ["node", "pod"])
async def test_a_bind_that_fails_takes_nothing_from_a_pod_that_somebody_else_has_bound(end: str) -> None:
    """Another leader binds the pod to n2 while ours waits for n1; then n1 is deleted, or the pod is read late."""
    setup = Setup()
    setup.own_epoch()
    setup.api.put_pod(annotated(make_pod("o"), "n1", "GPU-1,NVIDIA,1,0:;", phase="allocating"))
    pod = setup.reserve(make_pod("p"))
    setup.lock("o")
    waiting = asyncio.create_task(setup.bind())
    await until(lambda: setup.world.signals._waiters, "waiting")
    setup.api.put_pod(annotated(pod, "n2", TEXT, phase="allocating"))
    if end == "node":
        del setup.api.nodes["n1"]
        setup.world.on_node_deleted("n1", "uid-n1")
        assert await waiting == "failed to get node n1"
    else:
        # The read is answered by what was before.
        setup.api.pods["default", "p"] = finalizing(pod)
        setup.api.serve("default", "o")
        assert await waiting == "pod default/p is being deleted"
        assert setup.api.lock("n1") == ""
    assert {node: list(setup.world.ledger.uses(node)) for node in ("n1", "n2")} == {"n1": ["GPU-1"], "n2": ["GPU-0"]}


async def test_a_list_says_nothing_about_pods_bound_after_it_was_made() -> None:
    setup = Setup()
    setup.strange_epoch()
    setup.reserve(make_pod("p", container(memory_mib=1000)))
    setup.api.put_pod(annotated(make_pod("old"), "n1", "GPU-1,NVIDIA,7,0:;"))
    del setup.api.pods["default", "old"]
    late = annotated(make_pod("late"), "n1", "GPU-1,NVIDIA,500,0:;")
    listed = setup.api.list_pods_on_node

    async def slow(node: str) -> list[Pod]:
        pods = await listed(node)
        setup.api.put_pod(late)
        return pods

    setup.api.list_pods_on_node = slow  # type: ignore[method-assign]
    assert await setup.bind() == ""
    assert {device: use.memory_mib for device, use in setup.world.ledger.uses("n1").items()} == {
        "GPU-0": 1000,
        "GPU-1": 500,
    }, "what was deleted unseen is gone, what came after the list stays"
