"""When a reservation begins and ends: rows of the public reports, by id."""

from __future__ import annotations

import pytest

from hami.core.keys import VGPU_TIME
from hami.core.model import Use
from hami.core.objects import Pod
from hami.placement.claims import BACKSTOP_S, ClaimState
from hami.placement.world import World
from tests.placement.complete_lists import pods_replaced
from tests.placement.fakes import (
    START_UNIX_S,
    FakeClock,
    annotated,
    make_pod,
    unscheduled,
    with_phase,
)
from tests.placement.holders import ONE, relist, reserve, time_at, used


@pytest.mark.parametrize(
    "fact",
    ["deleted", "finished", "unscheduled", "filtered", "backstop", "bound elsewhere"],
)
def test_B52_B53_B74_reservation_ends_by_fact(world: World, clock: FakeClock, fact: str) -> None:
    pod = make_pod("p")
    reserve(world, pod)
    world.on_pod(pod)
    assert used(world)
    clock.advance(5)
    match fact:
        case "deleted":
            world.on_pod_deleted("default", "p", "uid-p")
        case "finished":
            world.on_pod(with_phase(pod, "Failed"))
        case "unscheduled":
            world.on_pod(unscheduled(pod, time_at(3)))
        case "filtered":
            world.ledger.end_reservation("uid-p")
        case "backstop":
            clock.advance(BACKSTOP_S - 6)
            world.settle_now()
            assert used(world)
            clock.advance(2)
            world.settle_now()
        case "bound elsewhere":
            world.on_pod(annotated(pod, "n2", ONE))
    assert used(world, "n1") == {}


def test_reservation_outlives_what_is_no_end(world: World, clock: FakeClock) -> None:
    clock.advance(10)
    pod = unscheduled(make_pod("p"), time_at(5))
    reserve(world, pod)
    clock.advance(1)
    world.on_pod(pod)
    world.on_pod(unscheduled(make_pod("p"), time_at(5), version=7))
    world.on_pod(unscheduled(make_pod("p"), time_at(8), version=8))
    relist(world, "uid-p")
    assert used(world)
    claim = world.ledger.get("uid-p")
    assert claim is not None
    assert claim.resource_version == "8"


def test_second_failure_in_a_row_ends_the_reservation_by_its_text(world: World, clock: FakeClock) -> None:
    clock.advance(10)
    pod = unscheduled(make_pod("p"), time_at(5), version=5)
    reserve(world, pod)
    world.on_pod(unscheduled(make_pod("p"), time_at(5), version=4, message="late event of an earlier attempt"))
    assert used(world)
    world.on_pod(unscheduled(make_pod("p"), time_at(5), version=9, message="volume cannot be bound"))
    assert used(world) == {}


def test_reservation_younger_than_the_list_survives_it(world: World) -> None:
    reserve(world, make_pod("p"))
    relist(world)
    assert used(world)
    world.on_pod(make_pod("p"))
    relist(world)
    assert used(world) == {}


async def test_pod_bound_while_the_list_was_read_keeps_its_cards(world: World, clock: FakeClock) -> None:
    pod = make_pod("p")
    reserve(world, pod)
    world.ledger.mark_bound("uid-p")
    before = used(world)
    await pods_replaced(world, [])
    assert used(world) == before, "the list began before the pod was there; its event comes with the watch"
    world.on_pod(annotated(pod, "n1", "GPU-0,NVIDIA,1000,0:;"))
    clock.advance(BACKSTOP_S + 1)
    world.settle_now()
    assert used(world) == before
    await pods_replaced(world, [])
    assert used(world) == {}


@pytest.mark.parametrize("list_at_s", [0.0, BACKSTOP_S + 1])
async def test_pod_bound_and_deleted_while_nothing_was_heard_ends_by_the_backstop(
    world: World, clock: FakeClock, list_at_s: float
) -> None:
    reserve(world, make_pod("p"))
    world.ledger.mark_bound("uid-p")
    clock.advance(list_at_s)
    world.settle_now()
    assert used(world)
    await pods_replaced(world, [])
    clock.advance(BACKSTOP_S + 1)
    world.settle_now()
    assert used(world) == {}


def test_reservation_becomes_the_allocation(world: World) -> None:
    pod = make_pod("p")
    reserve(world, pod)
    before = used(world)
    world.ledger.mark_bound("uid-p")
    world.on_pod(pod)
    assert used(world) == before
    world.on_pod(annotated(pod, "n1", "GPU-0,NVIDIA,1000,0:;"))
    claim = world.ledger.get("uid-p")
    assert claim is not None
    assert claim.state is ClaimState.BOUND


def test_pinned_reservation_ends_only_with_its_binding(world: World, clock: FakeClock) -> None:
    pod = make_pod("p")
    reserve(world, pod)
    claim = world.ledger.get("uid-p")
    assert claim is not None
    claim.pinned = True
    world.ledger.end_reservation("uid-p")
    world.on_pod(unscheduled(pod, time_at(3)))
    relist(world)
    clock.advance(BACKSTOP_S + 1)
    world.settle_now()
    assert used(world)


def upstream(name: str = "p", at_s: float = 0.0, node: str = "n1") -> Pod:
    return annotated(make_pod(name), node, ONE, bound=False, **{VGPU_TIME: str(int(START_UNIX_S + at_s))})


def test_annotated_unbound_pod_is_a_reservation_dated_by_its_time(world: World, clock: FakeClock) -> None:
    world.on_pod(upstream(at_s=-600))
    assert used(world) == {"GPU-0": Use(1, 1000, 10)}
    clock.advance(599)
    world.settle_now()
    assert used(world)
    clock.advance(2)
    world.settle_now()
    assert used(world) == {}
    world.on_pod(upstream(at_s=-600))
    assert used(world) == {}
    world.on_pod(upstream(at_s=600))
    assert used(world)


def test_old_annotation_of_a_pending_pod_holds_nothing(world: World) -> None:
    world.on_pod(upstream(at_s=-BACKSTOP_S - 1))
    assert used(world) == {}


def test_B53_annotated_pod_that_was_given_up_holds_nothing(world: World, clock: FakeClock) -> None:
    world.on_pod(upstream())
    clock.advance(20)
    world.on_pod(unscheduled(upstream(), time_at(15)))
    assert used(world) == {}
    world.on_pod(upstream())
    assert used(world) == {}


def test_own_reservation_outranks_an_older_annotation(world: World, clock: FakeClock) -> None:
    world.on_pod(upstream())
    clock.advance(10)
    world.ledger.end_reservation("uid-p")
    reserve(world, make_pod("p"), "n2")
    world.on_pod(upstream())
    assert used(world, "n1") == {}
    assert used(world, "n2")


def test_newer_annotation_of_another_scheduler_replaces_the_reservation(world: World, clock: FakeClock) -> None:
    reserve(world, make_pod("p"), "n2")
    clock.advance(30)
    world.on_pod(upstream(at_s=20))
    assert used(world, "n2") == {}
    assert used(world, "n1") == {"GPU-0": Use(1, 1000, 10)}


def test_token_owner_is_known_without_a_read(world: World) -> None:
    world.on_pod(annotated(make_pod("p"), "n1", ONE, phase="allocating"))
    owner = world.owner_on_record("default", "p")
    assert owner is not None
    assert (owner.spec.node_name, owner.annotations["hami.io/bind-phase"]) == ("n1", "allocating")
    assert world.owner_on_record("default", "q") is None


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-14:00", "yesterday", ""])
def test_B53_odd_stamps_of_a_condition_end_no_reservation(world: World, clock: FakeClock, stamp: str) -> None:
    reserve(world, make_pod("p"))
    world.on_pod(unscheduled(make_pod("p"), stamp))
    assert (used(world) == {}) == stamp.startswith("9999")
