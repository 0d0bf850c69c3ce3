"""Reports beyond the list on /filter: bodies with parts missing, autoscalers' calls, and whether a pod fits at all."""

from __future__ import annotations

import json
import random

import pytest

from tests.reports.site import Object, Site, card, gpu, pod

GPU_POLICY = "hami.io/gpu-scheduler-policy"
POLICIES = ("binpack", "spread", "numa", "topology-aware", "binpack,numa", "topology-aware,binpack")
TEMPLATES = [{"metadata": {"name": "template-1"}}, {"metadata": {"name": "template-2"}}]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        pytest.param({"NodeNames": ["n1"]}, "missing pod", id="2599-no-pod"),
        pytest.param({"Pod": None, "NodeNames": ["n1"]}, "missing pod", id="2689-null-pod"),
        pytest.param({"Pod": None, "Nodes": {"items": TEMPLATES}}, "missing pod", id="2689-null-pod-and-nodes"),
        pytest.param({"Pod": pod(gpu(gpu=1))}, "missing node names", id="2688-no-nodes"),
        pytest.param({"Pod": pod(gpu(gpu=1)), "Nodes": None, "NodeNames": None}, "missing node names", id="2687-nulls"),
        pytest.param({"Pod": pod(gpu(gpu=1)), "NodeNames": "n1"}, "no list of node names", id="2688-a-text"),
        pytest.param({"Pod": [], "NodeNames": ["n1"]}, "cannot be decoded", id="2599-a-list-for-a-pod"),
    ],
)
async def test_hami_2599_2688_a_call_with_parts_missing_is_answered(body: Object, words: str) -> None:
    site = Site()
    site.node("n1")
    reply = await site.post("/filter", body)
    assert reply.status == 200
    assert words in json.loads(reply.body)["Error"]
    assert list(site.world.ledger.claims()) == []
    assert (await site.filter(pod(gpu(gpu=1), name="next"), "n1"))["NodeNames"] == ["n1"]


@pytest.mark.parametrize("more", [{}, {"NodeNames": None}, {"nodenames": None}])
@pytest.mark.parametrize("key", ["Nodes", "nodes"])
async def test_hami_2838_an_autoscaler_keeps_every_node_for_a_pod_without_devices(key: str, more: Object) -> None:
    """Otherwise no node is ever added for ordinary pods."""
    reply = await Site().post("/filter", {"Pod": pod(gpu()), key: {"items": TEMPLATES}, **more})
    answer = json.loads(reply.body)
    assert answer["Nodes"]["items"] == TEMPLATES
    assert (answer["Error"], answer["FailedNodes"]) == ("", None)


@pytest.mark.parametrize("seed", range(40))
async def test_hami_2811_whether_a_pod_fits_depends_on_no_policy(seed: int) -> None:
    """Policies choose among cards; where enough of them will do (on one NUMA node, if the pod is bound to one), one of
    these sets is given, and where not, none. Judged card by card, without what the evaluator does."""
    chance = random.Random(seed)
    cards = [
        card(f"GPU-{index}", index=index, numa=chance.choice([0, 1, 1, -1]), devmem=chance.choice([8000, 16000]))
        for index in range(chance.randint(2, 8))
    ]
    held = {each["id"]: (chance.choice([1000, 7000]), chance.choice([0, 50, 100])) for each in cards[::2]}
    count, memory_mib, cores = chance.randint(1, 4), chance.choice([500, 4000, 9000]), chance.choice([0, 50, 100])
    bound = chance.random() < 0.6
    groups: dict[int, set[str]] = {}
    for each in cards:
        used_mib, used_cores = held.get(each["id"], (0, 0))
        room = each["devmem"] - used_mib >= memory_mib and 100 - used_cores >= cores
        if room and not (cores == 100 and each["id"] in held) and not (used_cores == 100 and cores == 0):
            groups.setdefault(each["numa"] if bound else 0, set()).add(each["id"])
    for policy in POLICIES:
        site = Site()
        site.node("n1", *cards)
        for number, (uuid, (used_mib, used_cores)) in enumerate(held.items()):
            site.running(pod(gpu(gpu=1), name=f"old{number}"), "n1", f"{uuid},NVIDIA,{used_mib},{used_cores}:;")
        notes = {GPU_POLICY: policy} | ({"nvidia.com/numa-bind": "true"} if bound else {})
        answer = await site.filter(pod(gpu(gpu=count, mem=memory_mib, cores=cores), annotations=notes), "n1")
        claim = site.world.ledger.get("uid-p")
        if any(len(group) >= count for group in groups.values()):
            assert claim is not None, (policy, answer)
            given = {uuid for uuid, _ in claim.charges}
            assert len(given) == count
            assert any(given <= group for group in groups.values())
        else:
            assert claim is None
            assert answer["NodeNames"] is None
