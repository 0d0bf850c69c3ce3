"""Who holds which card: rows of the public reports, by id."""

from __future__ import annotations

import datetime

import pytest

from hami.core.codec import MigAllocation, encode_mig_allocations
from hami.core.fit import Fit, evaluate
from hami.core.keys import MIG_ALLOCATIONS, VGPU_TIME
from hami.core.model import MigPlacement, Policies, Use
from hami.core.objects import Pod
from hami.core.request import pod_request
from hami.placement.claims import BACKSTOP_S, ClaimState
from hami.placement.world import World
from tests.placement.complete_lists import pods_replaced
from tests.placement.fakes import (
    REGISTRY,
    START_UNIX_S,
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

ONE = "GPU-0,NVIDIA,1000,10:;"


def time_at(offset_s: float) -> str:
    return datetime.datetime.fromtimestamp(START_UNIX_S + offset_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def reserve(world: World, pod: Pod, node: str = "n1") -> None:
    world.settle_now()
    view = world.view(node)
    assert view is not None
    request = pod_request(pod, REGISTRY, Policies())
    found = evaluate(view.state, request, REGISTRY)  # type: ignore[arg-type]
    assert isinstance(found, Fit)
    world.ledger.reserve(pod, node, found, world.clock.monotonic_s(), world.clock.unix_s())


def relist(world: World, *listed: str) -> None:
    for uid in world.ledger.uids():
        world.ledger.not_listed(uid, set(listed))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def world(clock: FakeClock) -> World:
    world = make_world(clock)
    world.on_node(make_node("n1"))
    world.on_node(make_node("n2"))
    return world


def used(world: World, node: str = "n1") -> dict[str, Use]:
    return dict(world.ledger.uses(node))


def test_B25_share_is_given_back_exactly_once(world: World) -> None:
    for number in range(20):
        pod = annotated(make_pod("p", uid=f"u{number}"), "n1", ONE)
        world.on_pod(pod)
        world.on_pod(pod)
        assert used(world) == {"GPU-0": Use(1, 1000, 10)}
        world.on_pod(with_phase(pod, "Succeeded"))
        world.on_pod(with_phase(pod, "Succeeded"))
        world.on_pod_deleted("default", "p", f"u{number}")
        assert used(world) == {}


def test_B23_missed_delete_is_mended_by_the_relist(world: World) -> None:
    world.on_pod(annotated(make_pod("p"), "n1", ONE))
    relist(world)
    assert used(world) == {}
    assert world.ledger.get("uid-p") is None


def test_new_uid_under_the_same_name_replaces_the_old_pod(world: World) -> None:
    world.on_pod(annotated(make_pod("p", uid="old"), "n1", ONE))
    world.on_pod(annotated(make_pod("p", uid="new"), "n2", ONE))
    assert used(world, "n1") == {}
    assert used(world, "n2") == {"GPU-0": Use(1, 1000, 10)}
    world.on_pod_deleted("default", "p", "old")
    assert used(world, "n2") == {"GPU-0": Use(1, 1000, 10)}


def test_terminating_pod_keeps_its_cards_until_gone_also_after_a_restart(world: World) -> None:
    world.on_pod(deleted(annotated(make_pod("p"), "n1", ONE)))
    assert used(world) == {"GPU-0": Use(1, 1000, 10)}
    world.on_pod_deleted("default", "p", "uid-p")
    assert used(world) == {}


def test_B38_undecodable_allocation_closes_its_node_until_mended(world: World) -> None:
    world.on_pod(with_phase(annotated(make_pod("p"), "n1", "??,"), "Running"))
    world.settle_now()
    view = world.view("n1")
    assert view is not None
    assert "default/p" in view.problem
    assert world.columns.place("n1") is None
    assert world.columns.place("n2") is not None
    assert list(world.ledger.undecodable) == ["uid-p"]
    world.on_pod(with_phase(annotated(make_pod("p"), "n1", ONE), "Running"))
    world.settle_now()
    assert world.columns.place("n1") is not None
    world.on_pod(with_phase(annotated(make_pod("p"), "n1", "GPU-0,NVIDIA,-5,0:;"), "Running"))
    world.settle_now()
    assert world.columns.place("n1") is None
    world.on_pod_deleted("default", "p", "uid-p")
    world.settle_now()
    assert world.columns.place("n1") is not None


def test_B31_init_containers_by_the_max_rule_and_shrink(world: World) -> None:
    pod = make_pod("p", container(name="app"), init=(container(name="i1"), container(name="i2")))
    text = "GPU-0,NVIDIA,10000,0:;GPU-0,NVIDIA,9000,50:;GPU-0,NVIDIA,1000,20:;"
    pod = annotated(pod, "n1", text)
    world.on_pod(pod)
    assert used(world) == {"GPU-0": Use(1, 10000, 50)}
    world.on_pod(init_ended(pod, exit_code=1))
    assert used(world) == {"GPU-0": Use(1, 10000, 50)}
    world.on_pod(init_ended(pod))
    assert used(world) == {"GPU-0": Use(1, 1000, 20)}


def test_B32_sidecar_stays_counted(world: World) -> None:
    pod = make_pod("p", container(name="app"), init=(container(name="once"), container(name="side", restart="Always")))
    text = "GPU-0,NVIDIA,9000,0:;GPU-0,NVIDIA,6000,0:;GPU-0,NVIDIA,6000,0:;"
    pod = annotated(pod, "n1", text)
    world.on_pod(pod)
    assert used(world) == {"GPU-0": Use(2, 15000, 0)}
    world.on_pod(init_ended(pod))
    assert used(world) == {"GPU-0": Use(2, 12000, 0)}


def test_unknown_card_ids_are_counted_and_reported(world: World) -> None:
    world.on_pod(annotated(make_pod("p"), "n1", "GPU-gone,NVIDIA,1000,10:;"))
    world.settle_now()
    assert world.unknown_ids == {"n1": ("GPU-gone",)}
    assert used(world) == {"GPU-gone": Use(1, 1000, 10)}


def test_ids_need_to_be_unique_only_within_a_node(world: World) -> None:
    world.on_pod(annotated(make_pod("p"), "n1", ONE))
    world.on_pod(annotated(make_pod("q"), "n2", "GPU-0,NVIDIA,2000,0:;"))
    assert used(world, "n1") == {"GPU-0": Use(1, 1000, 10)}
    assert used(world, "n2") == {"GPU-0": Use(1, 2000, 0)}


def test_slices_of_older_releases_count_on_their_card(world: World) -> None:
    world.on_pod(annotated(make_pod("p"), "n1", "GPU-0[1-2],NVIDIA,1000,10:;"))
    assert used(world) == {"GPU-0": Use(1, 1000, 10)}


def test_mig_slices_stay_taken_for_the_pods_life_and_unknown_ones_close_the_card(world: World) -> None:
    world.on_node(make_node("n1", [card(0, mode="mig"), card(1)], version=2))
    slices = [
        MigAllocation(0, 0, "GPU-0", "1g", MigPlacement(2, 1)),
        MigAllocation(0, 1, "GPU-9", "1g", MigPlacement(3, 1)),
    ]
    pod = make_pod("p", container(name="app"), init=(container(name="once"),))
    pod = annotated(
        pod, "n1", "GPU-0,NVIDIA,4000,14:;;", bound=True, **{MIG_ALLOCATIONS: encode_mig_allocations(slices)}
    )
    world.on_pod(init_ended(pod))
    world.settle_now()
    view = world.view("n1")
    assert view is not None
    assert (view.state.mig_taken, used(world)) == ({"GPU-0": (MigPlacement(2, 1),)}, {})
    world.on_pod(annotated(make_pod("older"), "n1", "GPU-0[0-1],NVIDIA,4000,14:;"))
    world.settle_now()
    view = world.view("n1")
    assert view is not None
    assert [device.healthy for device in view.state.devices] == [False, True]
    without = world.state_without("n1", "uid-older")
    assert without is not None
    assert [device.healthy for device in without.devices] == [True, True]


def test_bound_pod_is_charged_where_it_is(world: World) -> None:
    pod = annotated(make_pod("p"), "n1", ONE, bound=False, **{VGPU_TIME: str(int(START_UNIX_S))})
    world.on_pod(pod)
    assert used(world, "n1")
    world.on_pod(annotated(make_pod("p"), "n2", ONE))
    assert (used(world, "n1"), used(world, "n2")) == ({}, {"GPU-0": Use(1, 1000, 10)})


# Reservations


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


# Annotated pods of other schedulers


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


async def test_B23_a_late_read_of_a_deleted_pod_makes_no_ghost(world: World) -> None:
    pod = annotated(make_pod("p"), "n1", ONE)
    world.on_pod(pod)
    world.on_pod_deleted("default", "p", "uid-p")
    world.on_pod(pod)
    world.node_pods_listed("n1", [pod])
    assert used(world) == {}
    await pods_replaced(world, [pod])
    assert used(world) == {"GPU-0": Use(1, 1000, 10)}
