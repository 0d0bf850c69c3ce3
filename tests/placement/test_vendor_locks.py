"""Pods with cards of two vendors whose plugins go by different locks (issue 6; spec/scheduler 2.7, 5 and 9)."""

from __future__ import annotations

import asyncio
import datetime

import pytest

from hami.core import keys
from hami.core.device_type import NodeLock
from hami.core.errors import ApiError, TransportError
from hami.core.model import Use
from hami.placement.vendor_locks import own_locks
from tests.placement.bind_setup import Setup
from tests.placement.fakes import NVIDIA, annotated, make_pod
from tests.placement.second_vendor import OWN_LOCK, Mlu, Unlocked, asking, mixed_node
from tests.tools.waiting import until

MLU = Mlu()


class Mixed(Setup):
    """A scheduler that knows both vendors, and two nodes with two cards of each."""

    def __init__(self, mlu: Mlu = MLU, *, wait_s: float = 60.0) -> None:
        super().__init__(wait_s=wait_s, registry=(mlu, NVIDIA))
        for name in ("n1", "n2"):
            self.api.put_node(mixed_node(name, mlu))
        self.own_epoch()

    def own_lock(self, node: str = "n1") -> str:
        return self.api.nodes[node].annotations.get(OWN_LOCK, "")

    def stamp(self, age_s: float) -> str:
        then = datetime.datetime.fromtimestamp(self.clock.unix_s() - age_s, datetime.UTC)
        return f"{then:%Y-%m-%dT%H:%M:%SZ}"

    def set_own_lock(self, age_s: float, node: str = "n1") -> str:
        text = self.stamp(age_s)
        self.api._merge_node(node, {OWN_LOCK: text})
        self.api.calls.clear()
        return text


async def test_one_write_takes_both_locks_and_the_binding_carries_both_vendors_cards() -> None:
    setup = Mixed()
    setup.reserve(make_pod("p", asking(gpu=3000, mlu=5000)))
    assert await setup.bind() == ""
    assert [verb for verb, _ in setup.api.calls] == ["patch_node", "bind"]
    assert setup.own_lock() == setup.api.lock("n1").removesuffix(",default,p") == setup.stamp(0)
    notes = setup.api.pod("p").annotations
    assert notes[NVIDIA.to_allocate_key] == notes[NVIDIA.allocated_key] == "GPU-0,NVIDIA,3000,0:;"
    assert notes[MLU.to_allocate_key] == notes[MLU.allocated_key] == "MLU-0,MLU,5000,0:;"
    assert dict(setup.world.ledger.uses("n1")) == {"GPU-0": Use(1, 3000, 0), "MLU-0": Use(1, 5000, 0)}


async def test_pods_of_one_vendor_leave_the_others_lock_alone() -> None:
    setup = Mixed()
    setup.reserve(make_pod("p", asking(gpu=1000)))
    assert await setup.bind() == ""
    assert (bool(setup.api.lock("n1")), setup.own_lock()) == (True, "")


@pytest.mark.parametrize(("mlu", "lock_stays"), [(MLU, True), (Unlocked(), False)], ids=["own lock", "no lock"])
async def test_a_token_that_no_plugin_would_take_off_is_given_back_at_once(mlu: Mlu, lock_stays: bool) -> None:
    setup = Mixed(mlu)
    setup.reserve(make_pod("p", asking(mlu=1000)))
    assert await setup.bind() == ""
    assert setup.api.pod("p").spec.node_name == "n1"
    assert setup.api.lock("n1") == ""
    assert bool(setup.own_lock()) is lock_stays


@pytest.mark.parametrize(
    ("age_s", "asks", "waits"),
    [
        (10, {"mlu": 1000}, True),
        (10, {"gpu": 1000, "mlu": 1000}, True),
        (10, {"gpu": 1000}, False),
        (119, {"mlu": 1000}, True),
        (121, {"mlu": 1000}, False),
        (-119, {"mlu": 1000}, True),
        (-121, {"mlu": 1000}, False),
    ],
)
async def test_a_lock_in_use_is_waited_for_until_it_is_two_minutes_old(
    age_s: float, asks: dict[str, int], waits: bool
) -> None:
    setup = Mixed(wait_s=0.02)
    setup.reserve(make_pod("p", asking(**asks)))
    text = setup.set_own_lock(age_s)
    error = await setup.bind()
    if not waits:
        assert error == ""
        return
    assert error.startswith("timed out waiting for node n1 to be unlocked: node lock contention")
    assert f"{OWN_LOCK}={text}" in error
    assert (setup.api.lock("n1"), setup.own_lock()) == ("", text)
    assert setup.api.count("patch_node") == 0


async def test_an_unreadable_lock_counts_as_expired() -> None:
    setup = Mixed(wait_s=0.02)
    setup.reserve(make_pod("p", asking(mlu=1000)))
    setup.api._merge_node("n1", {OWN_LOCK: "yesterday"})
    assert await setup.bind() == ""
    assert setup.own_lock() == setup.stamp(0)


async def test_the_next_pod_wakes_when_the_vendors_plugin_takes_its_lock_off() -> None:
    setup = Mixed()
    setup.reserve(make_pod("p", asking(gpu=1000, mlu=1000)))
    setup.reserve(make_pod("q", asking(gpu=1000, mlu=1000)))
    assert await setup.bind("p") == ""
    setup.api.serve("default", "p")
    waiting = asyncio.create_task(setup.bind("q"))
    await until(lambda: setup.world.signals._waiters, "waiting for the vendor's own lock")
    assert setup.api.pod("q").spec.node_name == ""
    setup.api._merge_node("n1", {OWN_LOCK: None})
    assert await asyncio.wait_for(waiting, 60.0) == ""


@pytest.mark.parametrize("fault", [ApiError(403, "Forbidden", "no"), ApiError(422, "Invalid", "bad")])
async def test_a_refused_binding_gives_both_back(fault: ApiError) -> None:
    setup = Mixed()
    setup.reserve(make_pod("p", asking(gpu=1000, mlu=1000)))
    setup.api.faults["bind", "before"] = [fault]
    assert await setup.bind() == str(fault)
    assert (setup.api.lock("n1"), setup.own_lock()) == ("", "")
    assert await setup.bind() == ""


async def test_somebody_elses_lock_is_left_when_ours_are_given_back() -> None:
    setup = Mixed()
    setup.reserve(make_pod("p", asking(gpu=1000, mlu=1000)))
    setup.api.faults["bind", "before"] = [ApiError(403, "Forbidden", "no")]
    theirs = setup.stamp(-1)
    setup.api.hooks["bind", "before"] = lambda: setup.api._merge_node("n1", {OWN_LOCK: theirs})
    assert await setup.bind() != ""
    assert (setup.api.lock("n1"), setup.own_lock()) == ("", theirs)


async def test_a_bind_that_left_both_behind_takes_both_again() -> None:
    """Its Binding was not answered: the locks stay, and the pod's next bind knows them by the token's time."""
    setup = Mixed(wait_s=0.5)
    setup.reserve(make_pod("p", asking(gpu=1000, mlu=1000)))
    setup.api.faults["bind", "before"] = [TransportError("timeout") for _ in range(9)]
    setup.api.faults["patch_pod", "before"] = [ApiError(403, "Forbidden", "no")]
    assert "timeout" in await setup.bind()
    assert setup.own_lock() == setup.api.lock("n1").removesuffix(",default,p") != ""
    setup.api.faults.clear()
    setup.clock.advance(30)
    assert await setup.bind() == ""
    assert setup.own_lock() == setup.stamp(0)


async def test_two_pods_that_need_both_never_hold_one_each() -> None:
    """In upstream the locks are taken one after another, in the order of names; here no order can go wrong."""
    setup = Mixed()
    names = [f"p{number}" for number in range(6)]
    for name in names:
        setup.reserve(make_pod(name, asking(gpu=1000, mlu=1000)))
    seen: list[tuple[bool, bool]] = []
    put_node = setup.api.put_node

    def watched(node):  # type: ignore[no-untyped-def]
        seen.append((keys.NODE_LOCK in node.annotations, OWN_LOCK in node.annotations))
        return put_node(node)

    setup.api.put_node = watched  # type: ignore[method-assign]

    async def plugins() -> None:
        done = 0
        while done < len(names):
            owner = setup.api.lock("n1").rpartition(",")[2]
            if owner and setup.api.pod(owner).spec.node_name:
                setup.api._merge_node("n1", {OWN_LOCK: None})
                setup.api.serve("default", owner)
                done += 1
            await asyncio.sleep(0)

    serving = asyncio.create_task(plugins())
    assert await asyncio.gather(*(setup.bind(name) for name in names)) == [""] * len(names)
    await serving
    assert (False, True) not in seen
    assert seen.count((True, True)) >= len(names)


async def test_without_the_own_lock_in_force_the_other_vendors_bind_goes_past_it() -> None:
    """The negative control: the same node, a vendor that goes by no lock."""
    setup = Mixed(Unlocked(), wait_s=0.02)
    setup.reserve(make_pod("p", asking(gpu=1000, mlu=1000)))
    text = setup.set_own_lock(10)
    assert await setup.bind() == ""
    assert setup.own_lock() == text


async def test_bound_pods_of_both_vendors_are_read_back_after_a_restart() -> None:
    setup = Mixed()
    pod = make_pod("p", asking(gpu=1, mlu=1), annotations={MLU.allocated_key: "MLU-1,MLU,9,0:;"})
    setup.api.put_pod(annotated(pod, "n1", "GPU-1,NVIDIA,7,0:;"))
    assert dict(setup.world.ledger.uses("n1")) == {"GPU-1": Use(1, 7, 0), "MLU-1": Use(1, 9, 0)}


async def test_a_lock_that_appears_while_the_write_waits_its_turn_is_respected() -> None:
    """The API server is busy, and a scheduler of the vendor's own takes its lock meanwhile."""
    setup = Mixed(wait_s=0.3)
    setup.reserve(make_pod("p", asking(gpu=1000, mlu=1000)))
    slots = setup.binder._tokens._slots
    while not slots.locked():
        await slots.acquire()
    bind = asyncio.create_task(setup.bind())
    await until(lambda: slots._waiters, "the write waits")
    text = setup.set_own_lock(0)
    slots.release()
    assert "contention" in await bind
    assert (setup.api.lock("n1"), setup.own_lock()) == ("", text)


def test_locks_come_in_the_order_of_their_keys_once_each() -> None:
    vendors = []
    for word, key in (("A", "z/lock"), ("B", "a/lock"), ("C", "z/lock"), ("D", keys.NODE_LOCK)):
        vendor = Mlu()
        vendor.word, vendor.node_lock = word, NodeLock(key)
        vendors.append(vendor)
    assert [lock.key for lock in own_locks(vendors)] == ["a/lock", "z/lock"]
    assert [lock.key for lock in own_locks(vendors, ["D", "A"])] == ["z/lock"]
    assert own_locks(vendors, ["D"]) == own_locks(vendors, []) == ()


async def test_a_vendors_own_lock_sets_no_node_back() -> None:
    """It holds up that vendor's pods only, and nothing would tell when it is off."""
    setup = Mixed(wait_s=0.02)
    setup.reserve(make_pod("p", asking(mlu=1000)))
    setup.set_own_lock(10)
    assert "contention" in await setup.bind()
    assert setup.world.set_back() == set()
