"""The re-check of a bind (design 3, step 3): what became of node, cards and pod since `/filter` chose them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hami.core import keys
from hami.core.codec import MigAllocation, decode_mig_allocations, encode_mig_allocations
from hami.core.model import Device, MigPlacement, MigProfile
from hami.core.objects import Node
from tests.placement.bind_setup import Setup
from tests.placement.fakes import NVIDIA, REGISTRY, annotated, card, container, make_node, make_pod, with_phase

CHOSEN = "GPU-0"
ASKED = {"nvidia.com/use-gputype": "A100", "nvidia.com/vgpu-mode": "hami-core"}


@pytest.fixture
def setup() -> Setup:
    """A pod that asks for an A100 in the usual mode has its share of `CHOSEN` on n1."""
    setup = Setup()
    setup.own_epoch()
    setup.reserve(make_pod("p", container(memory_mib=1000, cores=20), annotations=ASKED))
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert [device for device, _ in claim.charges] == [CHOSEN]
    return setup


def allocated(setup: Setup) -> str:
    return setup.api.pod("p").annotations.get(NVIDIA.allocated_key, "")


def register(setup: Setup, cards: list[Device]) -> None:
    """The plugin writes n1's cards anew; what a bind wrote there stays."""
    node = setup.api.nodes["n1"]
    fresh = make_node("n1", cards)
    kept = {key: node.annotations[key] for key in (keys.BIND_EPOCH, keys.NODE_LOCK) if key in node.annotations}
    meta = msgspec.structs.replace(fresh.metadata, annotations=fresh.annotations | kept)
    setup.api.put_node(Node(metadata=meta, status=fresh.status))


def at(setup: Setup, moment: str, change: Callable[[], object]) -> None:
    if moment == "before":
        change()
    else:
        setup.api.hooks["patch_node", "before"] = change


MOMENTS = pytest.mark.parametrize("moment", ["before", "while the token is written"])


@MOMENTS
@pytest.mark.parametrize(
    "fields",
    [
        {"healthy": False},
        {"memory_mib": 500},
        {"slots": 0},
        {"core_percent": 10},
        {"mode": "mig"},
        {"mode": "mps"},
        {"type": "NVIDIA H100"},
    ],
    ids=str,
)
async def test_a_card_that_the_pod_may_not_have_any_more_is_exchanged(
    setup: Setup, fields: dict[str, Any], moment: str
) -> None:
    at(setup, moment, lambda: register(setup, [card(0, **fields), card(1)]))
    assert await setup.bind() == ""
    assert allocated(setup) == "GPU-1,NVIDIA,1000,20:;"
    setup.world.settle_now()
    assert list(setup.world.ledger.uses("n1")) == ["GPU-1"]


@MOMENTS
@pytest.mark.parametrize(
    "cards",
    [
        [card(1), card(0)],
        [card(1, index=0), card(0, index=1)],
        [card(0, memory_mib=32768), card(1)],
        [card(0), card(1, healthy=False)],
        [card(0)],
    ],
    ids=["listed the other way round", "other numbers", "more memory", "another is ill", "another is gone"],
)
async def test_a_card_that_still_serves_is_kept_or_exchanged_for_one_that_does(
    setup: Setup, cards: list[Device], moment: str
) -> None:
    at(setup, moment, lambda: register(setup, cards))
    assert await setup.bind() == ""
    held = allocated(setup).partition(",")[0]
    assert held in {each.id for each in cards if each.healthy}
    setup.world.settle_now()
    assert list(setup.world.ledger.uses("n1")) == [held]


@MOMENTS
async def test_a_card_cordoned_meanwhile_is_exchanged(setup: Setup, moment: str) -> None:
    at(setup, moment, lambda: setup.api.annotate_node("n1", cordon=CHOSEN))
    assert await setup.bind() == ""
    assert allocated(setup) == "GPU-1,NVIDIA,1000,20:;"


@MOMENTS
async def test_where_every_card_is_cordoned_meanwhile_nothing_is_bound(setup: Setup, moment: str) -> None:
    at(setup, moment, lambda: setup.api.annotate_node("n1", cordon="GPU-0,GPU-1"))
    assert (await setup.bind()).startswith("node n1 does not fit any more: ")
    assert setup.api.pod("p").spec.node_name == ""
    assert setup.api.lock("n1") == ""


async def test_a_pod_whose_cards_did_not_change_is_bound_without_a_read(setup: Setup) -> None:
    register(setup, [card(0), card(1)])
    setup.api.calls.clear()
    assert await setup.bind() == ""
    assert [verb for verb, _ in setup.api.calls] == ["patch_node", "bind"]


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
@pytest.mark.parametrize("moment", ["before", "while the token is written", "before the Binding"])
async def test_a_pod_that_ended_meanwhile_is_not_bound(setup: Setup, phase: str, moment: str) -> None:
    """kube-apiserver binds what has ended; the watch has not told of the end."""
    world, setup.api.world = setup.api.world, None
    assert world is not None

    def end() -> None:
        setup.api.put_pod(with_phase(setup.api.pod("p"), phase))

    if moment == "before the Binding":
        setup.api.hooks["bind", "before"] = end
    else:
        at(setup, moment, end)
    assert await setup.bind() == f"pod default/p has ended ({phase})"
    assert setup.api.pod("p").spec.node_name == ""
    assert setup.api.lock("n1") == ""
    setup.assert_free()


async def test_a_pod_without_shares_may_have_some_under_other_rules() -> None:
    """Resources got other names between filter and bind: what filter found says nothing any more."""
    setup = Setup()
    setup.own_epoch()
    pod = setup.api.put_pod(make_pod("p", container(count=0)))
    assert setup.engine.filter(pod, setup.names).passthrough
    assert await setup.bind() == ""
    assert setup.api.count("get_pod") == 0
    other = setup.api.put_pod(make_pod("q", container(count=0)))
    assert setup.engine.filter(other, setup.names).passthrough
    setup.world.take_rules(REGISTRY)
    assert await setup.bind("q") == ""
    assert setup.api.count("get_pod") == 1, "what it asks for is looked up"


PROFILE = MigProfile("3g.20gb", 19968, 42, 4, (MigPlacement(0, 4), MigPlacement(4, 4)))


@pytest.mark.parametrize("moment", ["before", "in the list of pods"])
@pytest.mark.parametrize(("theirs", "ours"), [(0, 4), (4, 0)])
async def test_a_slice_that_another_pod_was_given_meanwhile_is_exchanged(moment: str, theirs: int, ours: int) -> None:
    """Two leaders: the card has room and slots for both, but not the same slice."""
    setup = Setup()
    setup.strange_epoch()
    register(setup, [card(0, memory_mib=40000, slots=7, mode="mig", mig_profiles=(PROFILE,))])
    setup.reserve(make_pod("p", container(memory_mib=15000)))
    claim = setup.world.ledger.get("uid-p")
    assert claim is not None
    assert claim.slices == (("GPU-0", MigPlacement(4, 4)),)
    mig = MigAllocation(0, 0, "GPU-0", "3g.20gb", MigPlacement(theirs, 4))
    notes = {keys.MIG_ALLOCATIONS: encode_mig_allocations([mig])}
    other = annotated(make_pod("q", annotations=notes), "n1", "GPU-0,NVIDIA,19968,42:;", phase="success")
    if moment == "before":
        setup.api.put_pod(other)
    else:
        setup.api.hooks["patch_node", "before"] = lambda: setup.api.pods.update({("default", "q"): other})
    assert await setup.bind() == ""
    (held,) = decode_mig_allocations(setup.api.pod("p").annotations[keys.MIG_ALLOCATIONS], "p")
    assert held.placement == MigPlacement(ours, 4)
    assert setup.api.count("list_pods") == 1


@pytest.mark.parametrize(
    ("ours", "theirs", "kept"),
    [
        ((0, 1000), [(100, 500)], False),
        ((100, 1000), [(0, 500)], False),
        ((100, 1000), [(40, 500)], False),
        ((0, 1000), [(50, 500), (50, 500)], True),
        ((50, 1000), [(50, 500)], True),
        ((0, 1000), [(0, 500)], True),
    ],
    ids=str,
)
async def test_a_card_that_one_pod_has_whole_is_shared_with_nobody(
    ours: tuple[int, int], theirs: list[tuple[int, int]], kept: bool
) -> None:
    """Another leader bound pods to the chosen card meanwhile; memory and slots would do for all of them."""
    setup = Setup()
    setup.strange_epoch()
    setup.reserve(make_pod("p", container(cores=ours[0], memory_mib=ours[1])))
    for number, (cores, memory_mib) in enumerate(theirs):
        text = f"{CHOSEN},NVIDIA,{memory_mib},{cores}:;"
        setup.api.put_pod(annotated(make_pod(f"q{number}"), "n1", text, phase="success"))
    assert await setup.bind() == ""
    assert allocated(setup).partition(",")[0] == (CHOSEN if kept else "GPU-1")
