"""`--patch-in-filter`: the allocation is on the pod when filter answers, counts once, and ends by fact."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami.core import keys
from hami.core.errors import ApiError, TransportError
from hami.core.objects import Pod, PodCondition
from hami.placement.announce import AnnouncingFilters
from hami.placement.bind import Binder, BindSettings
from hami.placement.claims import BACKSTOP_S, ClaimState
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from tests.placement.fake_api import FakeApi, FakeEvents
from tests.placement.fakes import NVIDIA, FakeClock, annotated, container, make_node, make_pod, make_world
from tests.tools.waiting import until

LONG = "n" * 64


class Setup:
    """One scheduler with `--patch-in-filter`."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.world = make_world(self.clock)
        self.api = FakeApi(self.world)
        for name in ("n1", LONG):
            self.api.put_node(make_node(name, cards=1))
        self.filters = AnnouncingFilters(Engine(self.world), self.world, self.api)
        self.binder = Binder(self.world, self.api, FakeEvents(), self.clock, BindSettings("sched-0"))

    async def filter(self, pod: Pod, *names: str) -> str:
        answer = await self.filters.filter_sliced(pod, NodeNames.of(names or ["n1"]))
        return answer.node or answer.error or next(iter(answer.failed.values()))

    def used(self, node: str = "n1") -> int:
        self.world.settle_now()
        return sum(use.memory_mib for use in self.world.ledger.uses(node).values())


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_the_pod_carries_its_allocation_when_filter_answers_and_it_counts_once(setup: Setup) -> None:
    pod = setup.api.put_pod(make_pod("p", annotations={keys.MIG_ALLOCATIONS: "[]"}))
    assert await setup.filter(pod) == "n1"
    written = setup.api.pod("p")
    text = "GPU-0,NVIDIA,1000,0:;"
    assert written.annotations == {
        keys.VGPU_NODE: "n1",
        keys.VGPU_TIME: str(int(setup.clock.unix_s())),
        NVIDIA.to_allocate_key: text,
        NVIDIA.allocated_key: text,
    }
    assert written.labels == {keys.VGPU_NODE: "n1"}
    assert setup.used() == 1000
    assert await setup.binder.bind("default", "p", "uid-p", "n1") == ""
    bound = setup.api.pod("p")
    assert (bound.spec.node_name, bound.annotations[keys.BIND_PHASE]) == ("n1", keys.PHASE_ALLOCATING)
    assert setup.api.count("bind") == 1, "the patch of our own moved the version that the Binding names"
    assert setup.used() == 1000


async def test_a_node_name_that_is_no_label_value_is_left_out_of_the_labels(setup: Setup) -> None:
    pod = setup.api.put_pod(make_pod("p"))
    assert await setup.filter(pod, LONG) == LONG
    assert (setup.api.pod("p").annotations[keys.VGPU_NODE], setup.api.pod("p").labels) == (LONG, {})


@pytest.mark.parametrize("error", [ApiError(500, "InternalError", "boom"), TransportError("no answer")])
async def test_a_patch_that_fails_gives_the_cards_back_even_if_it_landed(setup: Setup, error: Exception) -> None:
    pod = setup.api.put_pod(make_pod("p"))
    setup.api.faults["patch_pod", "after"] = [error]
    assert "could not be written" in await setup.filter(pod)
    assert setup.used() == 0
    setup.api.put_pod(setup.api.pod("p"))
    assert setup.used() == 0


async def test_another_restart_reads_the_reservation_from_the_pod_until_it_is_old(setup: Setup) -> None:
    pod = setup.api.put_pod(make_pod("p"))
    assert await setup.filter(pod) == "n1"
    fresh = make_world(setup.clock)
    fresh.on_node(make_node("n1", cards=1))
    fresh.on_pod(setup.api.pod("p"))
    claim = fresh.ledger.get("uid-p")
    assert claim is not None
    assert (claim.state, claim.node) == (ClaimState.ANNOTATED, "n1")
    setup.clock.advance(BACKSTOP_S + 1)
    fresh.settle_now()
    assert fresh.ledger.get("uid-p") is None
    fresh.on_pod(setup.api.pod("p"))
    assert fresh.ledger.get("uid-p") is None, "the same old annotation does not come back"


async def test_a_pod_that_is_given_up_or_filtered_anew_does_not_hold_what_its_annotations_say(setup: Setup) -> None:
    """Upstream counts such annotations until the pod goes (spec/scheduler 11.1, no. 5)."""
    pod = setup.api.put_pod(make_pod("p"))
    assert await setup.filter(pod) == "n1"
    setup.clock.advance(5)
    condition = PodCondition("PodScheduled", "False", "Unschedulable", "0/1", "2100-01-01T00:00:00Z")
    status = msgspec.structs.replace(setup.api.pod("p").status, conditions=(condition,))
    pod = setup.api.put_pod(msgspec.structs.replace(setup.api.pod("p"), status=status))
    assert setup.used() == 0
    other = setup.api.put_pod(make_pod("q", container(memory_mib=16000)))
    assert await setup.filter(other) == "n1"
    assert "CardInsufficientMemory" in await setup.filter(pod)
    setup.api.put_pod(setup.api.pod("p"))
    assert setup.used() == 16000


async def test_a_pod_that_changed_since_it_was_filtered_is_read_and_patched(setup: Setup) -> None:
    pod = setup.api.put_pod(make_pod("p"))
    setup.api.put_pod(setup.api.pod("p"))
    assert await setup.filter(pod) == "n1"
    assert setup.api.pod("p").annotations[keys.VGPU_NODE] == "n1"
    assert (setup.api.count("patch_pod"), setup.api.count("get_pod")) == (2, 1)


async def test_a_pod_that_another_leader_bound_meanwhile_keeps_what_its_binding_says(setup: Setup) -> None:
    pod = setup.api.put_pod(make_pod("p"))

    def bind() -> None:
        bound = setup.api.pod("p")
        notes = {keys.VGPU_NODE: LONG, NVIDIA.allocated_key: "GPU-0,NVIDIA,1000,0:;"}
        spec = msgspec.structs.replace(bound.spec, node_name=LONG)
        meta = msgspec.structs.replace(bound.metadata, annotations=notes)
        setup.api.put_pod(msgspec.structs.replace(bound, spec=spec, metadata=meta))

    setup.api.hooks["patch_pod", "before"] = bind
    assert "could not be written" in await setup.filter(pod)
    assert setup.api.pod("p").annotations[keys.VGPU_NODE] == LONG
    assert (setup.used("n1"), setup.used(LONG)) == (0, 1000)


async def test_a_late_write_of_an_earlier_choice_does_not_replace_the_newer_one(setup: Setup) -> None:
    """kube-scheduler lost patience with the first call and asked again; the first write is still on its way."""
    pod = setup.api.put_pod(make_pod("p"))
    gate = setup.api.gates["patch_pod"] = asyncio.Event()
    first = asyncio.create_task(setup.filter(pod, "n1"))
    await until(lambda: setup.api.count("patch_pod"), "the first write")
    del setup.api.gates["patch_pod"]
    assert await setup.filter(pod, LONG) == LONG
    gate.set()
    assert "could not be written" in await first
    assert setup.api.pod("p").annotations[keys.VGPU_NODE] == LONG
    assert (setup.used(), setup.used(LONG)) == (0, 1000)
    assert await setup.binder.bind("default", "p", "uid-p", LONG) == ""
    assert setup.api.pod("p").labels == {}
    assert (setup.used(), setup.used(LONG)) == (0, 1000)


async def test_a_filter_during_a_bind_writes_nothing(setup: Setup) -> None:
    """A write now would make the version old that the Binding asks for."""
    pod = setup.api.put_pod(make_pod("p"))
    assert await setup.filter(pod) == "n1"
    gate = setup.api.gates["patch_node"] = asyncio.Event()
    binding = asyncio.create_task(setup.binder.bind("default", "p", "uid-p", "n1"))
    await until(lambda: setup.api.count("patch_node"), "the token on its way")
    setup.api.calls.clear()
    assert await setup.filter(pod, "n1", LONG) == "n1"
    gate.set()
    assert await binding == ""
    assert [verb for verb, _ in setup.api.calls] == ["bind"]


@pytest.mark.parametrize("stamp", [None, "", "soon", "-5", "1e9"])
async def test_an_allocation_without_a_time_that_was_ended_does_not_come_back(setup: Setup, stamp: str | None) -> None:
    """Somebody else's allocation on an unbound pod: dated when it was first seen, and ended once."""
    notes = {} if stamp is None else {keys.VGPU_TIME: stamp}
    pod = setup.api.put_pod(annotated(make_pod("p"), "n1", "GPU-0,NVIDIA,1000,0:;", bound=False, **notes))
    assert setup.used() == 1000
    setup.clock.advance(BACKSTOP_S - 1)
    setup.api.put_pod(pod)
    assert setup.used() == 1000
    setup.clock.advance(2)
    assert setup.used() == 0
    setup.api.put_pod(pod)
    assert setup.used() == 0
