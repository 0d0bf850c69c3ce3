"""Which cards nodes offer: decoding, signs of life, ageing out and coming back."""

from __future__ import annotations

import datetime

import pytest

from hami.core.codec import RegisterForm, encode_register
from hami.core.reasons import NODE_UNREGISTERED
from hami.placement.handshake import HandshakeKind, read_handshake
from tests.placement.complete_lists import nodes_replaced, pods_replaced
from tests.placement.fakes import START_UNIX_S, FakeClock, card, make_node, make_world


def stamp(offset_s: float, zone_hours: float = 0.0, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Wall time `offset_s` from the test's start, as a writer in that zone has it."""
    zone = datetime.timezone(datetime.timedelta(hours=zone_hours))
    return datetime.datetime.fromtimestamp(START_UNIX_S + offset_s, zone).strftime(form)


def reported(offset_s: float) -> str:
    return f"Reported {stamp(offset_s)}.434037031 +0000 UTC m=+1104711.777"


@pytest.mark.parametrize("zone", [0.0, 8.0, -5.0, 5.5, 5.75, 14.0, -12.0])
@pytest.mark.parametrize("form", ["%Y-%m-%d %H:%M:%S", "%Y.%m.%d %H:%M:%S"])
@pytest.mark.parametrize(("written_s", "age_s"), [(0.0, 0.0), (-90.0, 90.0), (-59.0, 59.0), (20.0, 0.0)])
def test_B41_requesting_stamp_has_its_age_in_any_zone(zone: float, form: str, written_s: float, age_s: float) -> None:
    found = read_handshake(f"Requesting_{stamp(written_s, zone, form)}", START_UNIX_S)
    assert (found.kind, found.age_s) == (HandshakeKind.REQUESTING, age_s)


@pytest.mark.parametrize(
    "text", ["", "Requesting", "Requesting_xyz", "Requesting_2026-13-45 99:99:99", "Deleted_2026-01-01 00:00:00", "?"]
)
def test_B41_odd_handshakes_count_as_absent(text: str) -> None:
    assert read_handshake(text, START_UNIX_S).kind is HandshakeKind.ABSENT


def test_reported_stamp_carries_its_zone() -> None:
    assert read_handshake(reported(-30.0), START_UNIX_S).age_s == 30.0
    there = f"Reported {stamp(-30.0, 8.0)}.1 +0800 CST m=+1.5"
    assert read_handshake(there, START_UNIX_S).age_s == 30.0


@pytest.mark.parametrize(
    ("handshake", "allocatable", "problem"),
    [
        (None, None, ""),
        (None, 20, ""),
        (None, 0, "allocatable"),
        (reported(-10), 20, ""),
        (reported(-100), 20, ""),
        (reported(-100), None, "silent"),
        (reported(600), 20, ""),
        ("Deleted_2026-01-01 00:00:00", 20, ""),
        ("Requesting", 20, ""),
        (f"Requesting_{stamp(-90)}", 20, ""),
        (f"Requesting_{stamp(-90)}", None, "answered"),
        (f"Requesting_{stamp(-60)}", None, "answered"),
        (f"Requesting_{stamp(-59)}", None, ""),
        (reported(-90), None, "silent"),
        (reported(-89), None, ""),
    ],
)
def test_B40_B41_node_is_in_or_out(handshake: str | None, allocatable: int | None, problem: str) -> None:
    world = make_world()
    world.on_node(make_node("n1", handshake=handshake, allocatable=allocatable))
    world.settle_now()
    view = world.view("n1")
    assert view is not None
    assert problem in view.problem
    assert bool(view.state.devices) == (not problem)
    assert view.problem == "" or view.problem.startswith(NODE_UNREGISTERED)


def test_silent_plugin_ages_out_and_comes_back() -> None:
    clock = FakeClock()
    world = make_world(clock)
    world.on_node(make_node("n1", handshake=reported(0), version=1))
    for second in (30, 60):
        clock.advance(30)
        world.on_node(make_node("n1", handshake=reported(second), version=second))
    clock.advance(89)
    world.settle_now()
    assert len(world.columns) == 1
    clock.advance(2)
    world.settle_now()
    assert len(world.columns) == 0
    world.on_node(make_node("n1", handshake=reported(152), version=200))
    world.settle_now()
    assert len(world.columns) == 1


def test_a_stamp_that_is_never_renewed_keeps_no_offered_card_out() -> None:
    """Left by an older plugin; the one that runs now writes only what changes."""
    clock = FakeClock()
    world = make_world(clock)
    for version, allocatable in ((1, 20), (2, 20), (3, 0), (4, 20)):
        world.on_node(make_node("n1", handshake=reported(-5000), allocatable=allocatable, version=version))
        clock.advance(120)
        world.settle_now()
        assert len(world.columns) == (1 if allocatable else 0)


@pytest.mark.parametrize("between", [None, "requesting"])
def test_a_plugin_that_renewed_its_stamp_and_stops_is_out_though_kubelet_offers_its_cards(between: str | None) -> None:
    clock = FakeClock()
    world = make_world(clock)
    for beat in range(3):
        world.on_node(make_node("n1", handshake=reported(30 * beat), allocatable=20, version=2 * beat + 1))
        if between:
            text = f"Requesting_{stamp(30 * beat)}"
            world.on_node(make_node("n1", handshake=text, allocatable=20, version=2 * beat + 2))
        clock.advance(30)
    world.on_node(make_node("n1", handshake=reported(90), allocatable=20, version=9))
    clock.advance(89)
    world.settle_now()
    assert len(world.columns) == 1
    clock.advance(2)
    world.settle_now()
    assert len(world.columns) == 0
    # The plugin that follows it in on-change mode takes the stamp away.
    world.on_node(make_node("n1", allocatable=20, version=10))
    world.settle_now()
    assert len(world.columns) == 1


def test_clock_of_the_node_may_be_ten_minutes_off() -> None:
    clock = FakeClock()
    world = make_world(clock)
    for beat in range(20):
        world.on_node(make_node("behind", handshake=reported(clock.now_s - 600), version=beat + 1))
        world.on_node(make_node("ahead", handshake=reported(clock.now_s + 600), version=beat + 1))
        clock.advance(30)
        world.settle_now()
        assert len(world.columns) == (1 if beat == 0 else 2)
    clock.advance(91)
    world.settle_now()
    assert len(world.columns) == 0


def test_heartbeat_on_change_never_ages_out() -> None:
    clock = FakeClock()
    world = make_world(clock, reported_limit_s=0.0)
    world.on_node(make_node("n1", handshake=reported(-5000)))
    world.settle_now()
    assert len(world.columns) == 1


@pytest.mark.parametrize(
    "register", ["garbage:", "GPU-a,10,abc,100,NVIDIA-X,0,true:", "[{", '[{"id":"GPU-a","devmem":99999999999}]']
)
def test_B37_undecodable_register_closes_only_its_node(register: str) -> None:
    world = make_world()
    world.on_node(make_node("bad", register=register))
    world.on_node(make_node("good"))
    world.settle_now()
    bad = world.view("bad")
    assert bad is not None
    assert "bad" in bad.problem
    assert not bad.state.devices
    assert list(world.inventory.undecodable) == ["bad"]
    assert world.columns.place("good") is not None
    world.on_node(make_node("bad", version=2))
    world.settle_now()
    assert world.columns.place("bad") is not None


@pytest.mark.parametrize("form", list(RegisterForm))
def test_every_register_form_registers(form: RegisterForm) -> None:
    world = make_world()
    world.on_node(make_node("n1", register=encode_register([card(0), card(1)], form)))
    world.settle_now()
    view = world.view("n1")
    assert view is not None
    assert [device.id for device in view.state.devices] == ["GPU-0", "GPU-1"]


def test_B43_new_node_of_the_same_name_starts_fresh() -> None:
    world = make_world()
    world.on_node(make_node("a", 2, uid="old", version=50))
    world.settle_now()
    world.on_node_deleted("a")
    world.settle_now()
    assert world.view("a") is None
    world.on_node(make_node("a", 1, uid="new", version=3))
    world.settle_now()
    view = world.view("a")
    assert view is not None
    assert len(view.state.devices) == 1


def test_B43_missed_delete_of_a_node() -> None:
    world = make_world()
    world.on_node(make_node("a", 2, uid="old", version=50))
    world.settle_now()
    world.on_node(make_node("a", 0, uid="new", version=3, register=""))
    world.settle_now()
    view = world.view("a")
    assert view is not None
    assert (view.state.devices, view.problem) == ((), NODE_UNREGISTERED)


def test_late_event_of_a_node_is_ignored() -> None:
    world = make_world()
    world.on_node(make_node("a", 2, version=50))
    world.on_node(make_node("a", 1, version=49))
    world.settle_now()
    view = world.view("a")
    assert view is not None
    assert len(view.state.devices) == 2


def test_zero_and_duplicate_cards_do_no_harm() -> None:
    world = make_world()
    world.on_node(make_node("zero", [card(0, slots=0), card(1, memory_mib=0)]))
    world.on_node(make_node("twice", [card(0), card(0, memory_mib=5), card(1)]))
    world.on_node(make_node("none", register="[]"))
    world.settle_now()
    twice, none = world.view("twice"), world.view("none")
    assert twice is not None
    assert none is not None
    assert [(device.id, device.memory_mib) for device in twice.state.devices] == [("GPU-0", 16384), ("GPU-1", 16384)]
    assert "no cards registered" in none.problem


def test_label_selector_keeps_nodes_out() -> None:
    world = make_world(node_label_selector=(("gpu", "on"),))
    world.on_node(make_node("n1"))
    world.settle_now()
    assert len(world.columns) == 0


def test_cordon_counts_at_once() -> None:
    world = make_world()
    world.on_node(make_node("n1", version=1))
    world.settle_now()
    world.on_node(make_node("n1", version=2, cordon=" GPU-0 ,,"))
    world.settle_now()
    view = world.view("n1")
    assert view is not None
    assert view.state.cordoned == {"GPU-0"}


async def test_B44_relist_of_nodes_drops_the_missing() -> None:
    world = make_world()
    await nodes_replaced(world, [make_node("a"), make_node("b")])
    assert not world.synced
    await pods_replaced(world, [])
    assert world.synced
    await nodes_replaced(world, [make_node("b")])
    assert world.view("a") is None
    assert world.columns.place("a") is None
    await nodes_replaced(world, [make_node("a"), make_node("b")])
    assert world.columns.place("a") is not None


async def test_list_is_believed_even_with_older_versions() -> None:
    world = make_world()
    world.on_node(make_node("a", 2, version=5000))
    await nodes_replaced(world, [make_node("a", 1, version=10)])
    world.settle_now()
    view = world.view("a")
    assert view is not None
    assert len(view.state.devices) == 1
