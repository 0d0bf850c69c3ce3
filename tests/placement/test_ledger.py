"""Who holds which card: rows of the public reports, by id."""

from __future__ import annotations

from hami.core.codec import MigAllocation, encode_mig_allocations
from hami.core.keys import MIG_ALLOCATIONS, VGPU_TIME
from hami.core.model import MigPlacement, Use
from hami.placement.world import World
from tests.placement.complete_lists import pods_replaced
from tests.placement.fakes import (
    START_UNIX_S,
    annotated,
    card,
    container,
    deleted,
    init_ended,
    make_node,
    make_pod,
    with_phase,
)
from tests.placement.holders import ONE, relist, used


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


# Annotated pods of other schedulers


async def test_B23_a_late_read_of_a_deleted_pod_makes_no_ghost(world: World) -> None:
    pod = annotated(make_pod("p"), "n1", ONE)
    world.on_pod(pod)
    world.on_pod_deleted("default", "p", "uid-p")
    world.on_pod(pod)
    world.node_pods_listed("n1", [pod], world.ledger.uids_on("n1"))
    assert used(world) == {}
    await pods_replaced(world, [pod])
    assert used(world) == {"GPU-0": Use(1, 1000, 10)}
