"""Report B49: every node that fits, so that kube-scheduler's own scoring decides; nothing is reserved."""

from __future__ import annotations

import json

import pytest

from tests.reports.site import Site, card, gpu, pod

NAMES = ["n1", "n2", "n3"]


def three(*, all_feasible: bool = False) -> Site:
    site = Site(all_feasible=all_feasible)
    for name in NAMES:
        site.node(name)
    return site


@pytest.mark.parametrize(
    ("always", "query", "every"),
    [
        pytest.param(False, "", False, id="B49-default"),
        pytest.param(False, "all=true", True, id="B49-query"),
        pytest.param(False, "x=1&all=True", True, id="B49-query-among-others"),
        pytest.param(False, "all=false", False, id="B49-query-off"),
        pytest.param(False, "fall=true", False, id="B49-another-word"),
        pytest.param(True, "", True, id="B49-flag"),
    ],
)
async def test_b49_one_or_all(always: bool, query: str, every: bool) -> None:
    site = three(all_feasible=always)
    site.node("small", card("GPU-small", devmem=100))
    answer = await site.filter(pod(gpu(gpu=1, mem=1000)), *NAMES, "small", "unknown", query=query)
    assert answer["NodeNames"] == (NAMES if every else ["n1"])
    assert set(answer["FailedNodes"] or {}) == ({"small", "unknown"} if every else set())
    assert answer["FailedAndUnresolvableNodes"] is None
    assert (site.world.ledger.get("uid-p") is None) == every


async def test_b49_a_choice_that_nobody_takes_leaves_nothing_behind() -> None:
    site = three()
    asking = pod(gpu(gpu=1, mem=16384))
    for _ in range(3):
        assert (await site.filter(asking, *NAMES, query="all=true"))["NodeNames"] == NAMES
    assert list(site.world.ledger.claims()) == []


async def test_b49_an_older_reservation_ends() -> None:
    site = three()
    asking = pod(gpu(gpu=1, mem=16384))
    assert (await site.filter(asking, *NAMES))["NodeNames"] == ["n1"]
    assert (await site.filter(asking, *NAMES, query="all=true"))["NodeNames"] == NAMES


async def test_b49_a_bound_pod_keeps_its_node() -> None:
    site = three()
    asking = pod(gpu(gpu=1, mem=1000))
    site.running(asking, "n2", "GPU-n2,NVIDIA,1000,0:;")
    assert (await site.filter(asking, *NAMES, query="all=true"))["NodeNames"] == ["n2"]
    assert "already bound" in (await site.filter(asking, "n1", query="all=true"))["Error"]


async def test_b49_where_nothing_fits_reasons_and_events_are_the_usual_ones() -> None:
    site = three()
    asking = pod(gpu(gpu=1, mem=20000))
    answer = await site.filter(asking, *NAMES, query="all=true")
    assert answer["NodeNames"] is None
    assert answer["FailedNodes"] == dict.fromkeys(NAMES, "1/1 CardInsufficientMemory")
    assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]
    assert any("3 nodes CardInsufficientMemory(n1,n2,n3)" in text for text in site.told)


async def test_b49_pods_without_devices_and_bad_input_go_their_usual_way() -> None:
    site = three()
    assert (await site.filter(pod(gpu()), *NAMES, query="all=true"))["NodeNames"] == NAMES
    answer = await site.filter(pod(gpu(gpu=1, mem="16Gi")), *NAMES, query="all=true")
    assert "write 16384" in answer["FailedNodes"]["n1"]


async def test_b49_the_namespaces_quota_holds_for_every_node() -> None:
    site = three()
    site.quota(limits_nvidia_com__gpumem="900")
    answer = await site.filter(pod(gpu(gpu=1, mem=1000)), *NAMES, query="all=true")
    assert answer["FailedNodes"] == dict.fromkeys(NAMES, "1/1 ResourceQuotaNotFit")


@pytest.mark.parametrize(
    ("policy", "scores"),
    [
        pytest.param("binpack", {"n1": 10, "n2": 5, "n3": 0, "unknown": 0}, id="B49-fullest-first"),
        pytest.param("spread", {"n1": 0, "n2": 5, "n3": 10, "unknown": 0}, id="B49-emptiest-first"),
    ],
)
async def test_b49_scores_follow_the_node_policy(policy: str, scores: dict[str, int]) -> None:
    site = three()
    site.running(pod(gpu(), name="a"), "n1", "GPU-n1,NVIDIA,8192,40:;")
    site.running(pod(gpu(), name="b"), "n2", "GPU-n2,NVIDIA,4096,15:;")
    asking = pod(gpu(gpu=1, mem=1000), annotations={"hami.io/node-scheduler-policy": policy})
    reply = await site.post("/prioritize", {"Pod": asking, "NodeNames": [*NAMES, "unknown"]})
    assert {each["Host"]: each["Score"] for each in json.loads(reply.body)} == scores


async def test_b49_scores_of_equal_nodes_and_of_pods_without_devices_prefer_nobody() -> None:
    site = three()
    for asking, score in ((pod(gpu(gpu=1, mem=5)), 10), (pod(gpu()), 0)):
        reply = await site.post("/prioritize", {"pod": asking, "nodenames": NAMES})
        assert json.loads(reply.body) == [{"Host": name, "Score": score} for name in NAMES]


@pytest.mark.parametrize("body", [{}, {"Pod": {}}, {"NodeNames": ["n1"]}, {"Pod": {}, "NodeNames": "n1"}, [], "x"])
async def test_b49_a_prioritize_call_that_is_none_is_refused(body: object) -> None:
    assert (await three().post("/prioritize", body)).status == 400
