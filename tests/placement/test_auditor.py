"""The auditor: silent where books and API objects agree, loud where they do not, and it repairs nothing."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from hami.core import keys
from hami.core.model import Use
from hami.core.objects import Pod
from hami.obs import metrics
from hami.placement.auditor import Auditor
from hami.placement.claims import ClaimState
from hami.placement.world import World
from tests.placement.costly_clock import CostlyClock
from tests.placement.fake_api import FakeEvents
from tests.placement.fakes import NVIDIA, FakeClock, annotated, container, make_node, make_pod, make_world
from tests.placement.listed import Listed


def bound_pod(name: str, memory_mib: int = 1000, *, node: str = "n1", text: str | None = None, version: int = 5) -> Pod:
    allocated = f"GPU-0,NVIDIA,{memory_mib},10:;" if text is None else text
    pod = make_pod(name, version=version, annotations={NVIDIA.allocated_key: allocated, keys.VGPU_NODE: node})
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))


class Setup:
    """A world with three pods, and the API server behind it."""

    def __init__(self) -> None:
        self.world: World = make_world(FakeClock())
        self.world.on_node(make_node("n1"))
        pods = [bound_pod("a"), bound_pod("b", 2000), bound_pod("c", text="GPU-0[0-1],NVIDIA,500,0:;,,0,0:;")]
        for pod in pods:
            self.world.on_pod(pod)
        self.api = Listed(*pods)
        self.events = FakeEvents()
        self.auditor = Auditor(self.world, self.api, self.events, settle_s=0.0)


@pytest.fixture
def setup() -> Setup:
    return Setup()


async def test_books_that_agree_are_silent(setup: Setup) -> None:
    assert await setup.auditor.check_memory() == []
    assert await setup.auditor.check_list() == []


async def test_a_sum_that_is_off_is_found_and_left(setup: Setup) -> None:
    book = setup.world.ledger._books["n1"]
    book.uses["GPU-0"] = Use(2, 1, 1)
    (found,) = await setup.auditor.check_memory()
    assert (found.node, found.subject) == ("n1", "card GPU-0")
    assert "memory_mib=3500" in found.problem
    assert book.uses["GPU-0"] == Use(2, 1, 1), "no silent repair"


@pytest.mark.parametrize(
    "charges",
    [
        (),
        (("GPU-0", Use(1, 999, 10)),),
        (("GPU-0", Use(1, 1001, 10)),),
        (("GPU-0", Use(1, 1000, 9)),),
        (("GPU-0", Use(1, 1000, 11)),),
        (("GPU-0", Use(2, 1000, 10)),),
        (("GPU-1", Use(1, 1000, 10)),),
    ],
    ids=["nothing", "too little", "too much", "fewer cores", "more cores", "another slot", "another card"],
)
async def test_a_claim_that_cannot_come_from_its_text_is_found(setup: Setup, charges: tuple[tuple[str, Use]]) -> None:
    claim = setup.world.ledger.get("uid-a")
    assert claim is not None
    claim.charges = charges
    found = await setup.auditor.check_memory()
    assert "pod default/a" in [each.subject for each in found]


async def test_pods_that_the_watch_never_brought_or_never_took_are_found(setup: Setup) -> None:
    setup.api.pods["new"] = bound_pod("new")
    del setup.api.pods["a"]
    setup.api.pods["b"] = bound_pod("b", 3000)
    found = {each.subject: each.problem for each in await setup.auditor.check_list()}
    assert "not booked" in found.pop("pod default/new")
    assert "does not exist" in found.pop("pod default/a")
    assert "2000 MiB" in found["pod default/b"]
    assert "3000 MiB" in found.pop("pod default/b")
    assert found == {}
    assert setup.world.ledger.get("uid-new") is None
    assert setup.world.ledger.get("uid-a") is not None, "no silent repair"


async def test_what_the_watch_brings_meanwhile_is_no_difference(setup: Setup) -> None:
    setup.api.pods["new"] = bound_pod("new")
    setup.api.on_read = lambda: setup.world.on_pod(setup.api.pods["new"])
    assert await setup.auditor.check_list() == []


async def test_a_finished_pod_that_is_still_booked_is_found(setup: Setup) -> None:
    ended = setup.api.pods["a"]
    setup.api.pods["a"] = msgspec.structs.replace(ended, status=msgspec.structs.replace(ended.status, phase="Failed"))
    (found,) = await setup.auditor.check_list()
    assert "holds nothing (Failed)" in found.problem


async def test_reservations_are_not_held_against_the_list(setup: Setup) -> None:
    pod = make_pod("reserved", annotations={NVIDIA.allocated_key: "GPU-0,NVIDIA,9,9:;", keys.VGPU_NODE: "n1"})
    setup.world.on_pod(pod)
    claim = setup.world.ledger.get("uid-reserved")
    assert claim is not None
    assert claim.state is ClaimState.ANNOTATED
    setup.api.pods["reserved"] = make_pod("reserved")
    assert await setup.auditor.check_list() == []


async def test_a_difference_is_an_event_and_a_metric(setup: Setup) -> None:
    setup.world.ledger._books["n1"].uses["GPU-0"] = Use(2, 1, 1)
    setup.auditor._tell("memory", await setup.auditor.check_memory())
    assert [(node, reason) for node, _, reason, _ in setup.events.recorded] == [("n1", "AuditDifference")]
    assert metrics.audit_differences.labels("memory")._value.get() == 1


async def test_an_init_container_that_asks_for_more_is_no_difference(setup: Setup) -> None:
    """The largest of the init containers or the sum of the others: the texts give bounds, the ledger the number."""
    init = (container(1, memory_mib=3000, cores=50, name="init"),)
    text = "GPU-0,NVIDIA,3000,50:;GPU-0,NVIDIA,1000,20:;"
    apps = container(1, memory_mib=1000, cores=20)
    pod = annotated(make_pod("init", apps, init=init), "n1", text)
    setup.world.on_pod(pod)
    claim = setup.world.ledger.get("uid-init")
    assert claim is not None
    assert claim.charges == (("GPU-0", Use(1, 3000, 50)),)
    assert await setup.auditor.check_memory() == []
    claim.charges = (("GPU-0", Use(1, 2000, 50)),)
    assert "pod default/init" in [each.subject for each in await setup.auditor.check_memory()]


async def test_an_audit_of_many_pods_gives_way(setup: Setup) -> None:
    """Promise 7, by the auditor's own measure: no turn of the loop waits for more than a few slices."""
    setup.world.clock = CostlyClock()
    for number in range(3000):
        pod = bound_pod(f"p{number}", 1, node=f"m{number % 300}")
        setup.world.on_pod(pod)
        setup.api.pods[pod.metadata.name] = pod
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counter = asyncio.ensure_future(count())
    assert await setup.auditor.check_memory() == []
    in_memory, turns = turns, 0
    assert await setup.auditor.check_list() == []
    counter.cancel()
    assert in_memory > 10
    assert turns > 10
