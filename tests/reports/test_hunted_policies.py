"""Reports beyond the list on policies: which node and which card a pod gets."""

from __future__ import annotations

import pytest

from hami.config.scheduler import load
from hami.core.errors import ConfigError
from hami.core.model import Policies
from tests.reports.site import Object, Site, card, gpu, pod

GPU_POLICY, NODE_POLICY = "hami.io/gpu-scheduler-policy", "hami.io/node-scheduler-policy"


async def chosen(site: Site, asking: Object, *nodes: str) -> tuple[str, list[str]]:
    """The node, and the cards in the order in which the allocation lists them."""
    (node,) = (await site.filter(asking, *nodes))["NodeNames"]
    claim = site.world.ledger.get(asking["metadata"]["uid"])
    assert claim is not None
    return node, [device for device, _ in claim.charges]


def two_cards(site: Site) -> None:
    """On the node: an idle card and one that is half full."""
    site.node("n1", card("GPU-idle", index=0), card("GPU-busy", index=1))
    site.running(pod(gpu(gpu=1, mem=8000), name="old"), "n1", "GPU-busy,NVIDIA,8000,40:;")


def two_nodes(site: Site) -> None:
    site.node("idle", card("GPU-a"))
    site.node("busy", card("GPU-b"))
    site.running(pod(gpu(gpu=1, mem=8000), name="old"), "busy", "GPU-b,NVIDIA,8000,40:;")


@pytest.mark.parametrize(("default", "card_id"), [("binpack", "GPU-busy"), ("spread", "GPU-idle")])
@pytest.mark.parametrize("written", [None, "", "binpakc", "Binpack", "pack", "binpack;numa", "binpack,numma", "é"])
async def test_hami_2767_a_card_policy_that_is_none_leaves_the_configured_one(
    written: str | None, default: str, card_id: str
) -> None:
    """The webhook refuses such a pod; this one missed it."""
    site = Site(policies=Policies(device=(default,)))
    two_cards(site)
    notes = {} if written is None else {GPU_POLICY: written}
    assert await chosen(site, pod(gpu(gpu=1, mem=100), annotations=notes), "n1") == ("n1", [card_id])


@pytest.mark.parametrize(("default", "node"), [("binpack", "busy"), ("spread", "idle")])
@pytest.mark.parametrize("written", [None, "", "spraed", "SPREAD", "binpack,spread", "numa", "spread binpack"])
async def test_hami_2767_a_node_policy_that_is_none_leaves_the_configured_one(
    written: str | None, default: str, node: str
) -> None:
    site = Site(policies=Policies(node=default))
    two_nodes(site)
    notes = {} if written is None else {NODE_POLICY: written}
    assert (await chosen(site, pod(gpu(gpu=1, mem=100), annotations=notes), "idle", "busy"))[0] == node


@pytest.mark.parametrize(("written", "node"), [(" spread ", "idle"), ("binpack", "busy")])
@pytest.mark.parametrize("default", ["binpack", "spread"])
async def test_hami_2767_control_a_known_one_overrides_it(written: str, node: str, default: str) -> None:
    site = Site(policies=Policies(node=default))
    two_nodes(site)
    asking = pod(gpu(gpu=1, mem=100), annotations={NODE_POLICY: written})
    assert (await chosen(site, asking, "idle", "busy"))[0] == node


@pytest.mark.parametrize(
    ("flag", "word"),
    [("node-scheduler-policy", "Spread"), ("node-scheduler-policy", "spraed"), ("gpu-scheduler-policy", "binpak"),
     ("gpu-scheduler-policy", "binpack,pack"), ("node-scheduler-policy", "numa")],
)  # fmt: skip
def test_hami_2995_a_flag_with_an_unknown_policy_stops_the_start(flag: str, word: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load([f"--{flag}={word}", "--device-config-file=device-config.yaml"], {})
    assert f"--{flag}" in str(refused.value)
    assert word.rpartition(",")[2] in str(refused.value)


@pytest.mark.parametrize("policy", ["binpack", "spread", "binpack,numa", "spread,numa"])
async def test_hami_1006_1806_use_comes_before_numa(policy: str) -> None:
    """Four cards on two NUMA nodes; those of node 0 are busy, those of node 1 nearly idle."""
    site = Site()
    names = ("GPU-00", "GPU-01", "GPU-10", "GPU-11")
    site.node("n1", *(card(name, index=at, numa=int(name[4])) for at, name in enumerate(names)))
    for name, mib in zip(names, (14000, 12000, 3000, 1000), strict=True):
        site.running(pod(gpu(gpu=1, mem=mib), name=name.lower()), "n1", f"{name},NVIDIA,{mib},0:;")
    asking = pod(gpu(gpu=1, mem=100), annotations={GPU_POLICY: policy})
    assert (await chosen(site, asking, "n1"))[1] == ["GPU-00" if policy.startswith("binpack") else "GPU-11"]


async def test_hami_1146_binpack_fills_the_node_in_use_first() -> None:
    site = Site()
    site.node("a", *(card(f"GPU-a{at}", index=at) for at in range(4)))
    site.node("b", *(card(f"GPU-b{at}", index=at) for at in range(4)))
    site.running(pod(gpu(gpu=1), name="old"), "b", "GPU-b2,NVIDIA,16384,100:;")
    assert (await chosen(site, pod(gpu(gpu=1)), "a", "b"))[0] == "b"


async def test_hami_1330_no_card_gets_more_tasks_than_it_has_shares() -> None:
    site = Site()
    site.node("n1", card("GPU-a", count=3), card("GPU-b", count=3, index=1))
    placed = [(await site.filter(pod(gpu(gpu=1, mem=1), name=f"p{at}"), "n1"))["NodeNames"] for at in range(7)]
    assert placed == [["n1"]] * 6 + [None]
    site.world.settle_now()
    assert [use.slots for use in site.world.ledger.uses("n1").values()] == [3, 3]


async def test_hami_705_a_bigger_sum_than_a_card_has_is_refused_whatever_was_scaled() -> None:
    """deviceMemoryScaling 2 registers twice the memory; percentages are of what is registered."""
    site = Site()
    site.node("n1", card("GPU-a", devmem=2 * 16384))
    assert (await site.filter(pod(gpu(gpu=1, percent=50), name="half"), "n1"))["NodeNames"] == ["n1"]
    assert (await site.filter(pod(gpu(gpu=1, mem=16384), name="rest"), "n1"))["NodeNames"] == ["n1"]
    assert (await site.filter(pod(gpu(gpu=1, mem=1), name="more"), "n1"))["NodeNames"] is None
