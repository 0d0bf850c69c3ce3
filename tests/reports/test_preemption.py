"""Report B50: a pod of high priority pushes out as little GPU use as possible, budgets kept (kube-scheduler's verb)."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from tests.reports.site import Object, Site, card, gpu, pod


def holder(name: str, priority: int | None, **labels: str) -> Object:
    body = pod(gpu(gpu=1, mem=1), name=name, labels=labels)
    if priority is not None:
        body["spec"]["priority"] = priority
    return body


def important(*, count: int = 1, mem: int) -> Object:
    return pod(gpu(gpu=count, mem=mem), name="urgent", priority=1000)


def full(*memory_mib: int, priorities: Sequence[int | None] = (), preempt: bool = True) -> Site:
    """One card of 16384 MiB on n1, with a pod for each of the sizes."""
    site = Site(preempt=preempt)
    site.node("n1", card("GPU-n1", count=20))
    for number, size in enumerate(memory_mib):
        priority = priorities[number] if priorities else 0
        site.running(holder(f"v{number}", priority, app=f"v{number}"), "n1", f"GPU-n1,NVIDIA,{size},1:;")
    return site


async def victims(site: Site, asking: Object, proposed: Object) -> Object:
    reply = await site.post("/preempt", {"Pod": asking, "NodeNameToMetaVictims": proposed})
    assert reply.status == 200, reply.body
    found: Object = json.loads(reply.body)["NodeNameToMetaVictims"]
    return found


NOBODY = {"n1": {"Pods": [], "NumPDBViolations": 0}}


def uids(*names: str) -> list[Object]:
    return [{"UID": f"uid-{name}"} for name in names]


@pytest.mark.parametrize(
    ("sizes", "priorities", "wanted_mib", "gone"),
    [
        pytest.param((16000,), (0,), 16000, ["v0"], id="B50-one-pod-fills-the-card"),
        pytest.param((8000, 8000), (0, 0), 8384, ["v0"], id="B50-of-equal-pods-one"),
        pytest.param((2000, 6000, 8000), (0, 0, 0), 6000, ["v1"], id="B50-the-smallest-that-does"),
        pytest.param((2000, 4000, 10000), (0, 0, 0), 6000, ["v0", "v1"], id="B50-two-small-before-one-large"),
        pytest.param((2000, 8000, 6000), (500, 0, 500), 2000, ["v1"], id="B50-lower-priority-before-less-memory"),
        pytest.param((8000, 8000), (1000, 999), 8000, ["v1"], id="B50-equal-priority-stays"),
        pytest.param((8000, 8000), (None, 2000), 8000, ["v0"], id="B50-no-priority-is-zero"),
        pytest.param((16000,), (-10,), 16000, ["v0"], id="B50-negative-priority"),
        pytest.param((1000,) * 14, (0,) * 14, 5000, ["v0", "v1", "v2"], id="B50-many-small-pods"),
    ],
)
async def test_b50_the_smallest_set_of_pods_goes(
    sizes: tuple[int, ...], priorities: tuple[int | None, ...], wanted_mib: int, gone: list[str]
) -> None:
    site = full(*sizes, priorities=priorities)
    found = await victims(site, important(mem=wanted_mib), NOBODY)
    assert len(found["n1"]["Pods"]) == len(gone)
    if len(sizes) <= 10:
        assert sorted(each["UID"] for each in found["n1"]["Pods"]) == [f"uid-{name}" for name in gone]


@pytest.mark.parametrize("priorities", [(1000, 1000), (2000, 1001)])
async def test_b50_without_lower_priorities_no_node_helps(priorities: tuple[int, int]) -> None:
    assert await victims(full(8000, 8000, priorities=priorities), important(mem=8000), NOBODY) == {}


async def test_b50_what_no_eviction_can_give_is_not_promised() -> None:
    site = full(8000, 8000)
    assert await victims(site, important(mem=20000), NOBODY) == {}
    assert await victims(site, important(mem=100, count=2), NOBODY) == {}
    assert await victims(site, important(mem=8000), {"unknown": {"Pods": []}}) == {}


def budget(allowed: int, selector: object, namespace: str = "default") -> Object:
    meta = {"name": "keep", "namespace": namespace}
    return {"metadata": meta, "spec": {"selector": selector}, "status": {"disruptionsAllowed": allowed}}


V0 = {"matchLabels": {"app": "v0"}}


@pytest.mark.parametrize(
    ("budgets", "gone"),
    [
        pytest.param([], ["v0"], id="B50-no-budget"),
        pytest.param([budget(0, V0)], ["v1"], id="B50-protected"),
        pytest.param([budget(1, V0)], ["v0"], id="B50-one-allowed"),
        pytest.param([budget(0, None)], ["v0"], id="B50-no-selector-protects-nobody"),
        pytest.param([budget(0, V0, "other")], ["v0"], id="B50-other-namespace"),
        pytest.param([budget(0, {})], [], id="B50-empty-selector-protects-all"),
        pytest.param(
            [budget(0, {"matchExpressions": [{"key": "app", "operator": "In", "values": ["v0", "x"]}]})],
            ["v1"],
            id="B50-expression",
        ),
        pytest.param(
            [budget(0, {"matchExpressions": [{"key": "app", "operator": "Exists"}]})], [], id="B50-exists-protects-all"
        ),
        pytest.param(
            [budget(0, {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["v0"]}]})],
            ["v0"],
            id="B50-not-in",
        ),
    ],
)
async def test_b50_budgets_are_kept(budgets: list[Object], gone: list[str]) -> None:
    site = full(6000, 8000)
    site.budgets = budgets
    found = await victims(site, important(mem=6000), NOBODY)
    assert found == ({"n1": {"Pods": uids(*gone), "NumPDBViolations": 0}} if gone else {})


async def test_b50_two_of_one_budget_with_one_allowed() -> None:
    site = full(6000, 6000, 4000)
    both = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["v0", "v1"]}]}
    site.budgets = [budget(1, both)]
    assert (await victims(site, important(mem=12000), NOBODY)) == {}
    found = await victims(site, important(mem=10000), NOBODY)
    assert found["n1"]["Pods"] == uids("v2", "v0") or found["n1"]["Pods"] == uids("v0", "v2")


async def test_b50_kube_schedulers_own_victims_stay_and_count_as_gone() -> None:
    """It picked v1 for its CPU; with it gone the cards are enough, or v0 comes to it. Its violations are passed on."""
    site = full(6000, 8000)
    asked = {"n1": {"Pods": uids("v1"), "NumPDBViolations": 1}}
    assert await victims(site, important(mem=8000), asked) == asked
    found = await victims(site, important(mem=16000), asked)
    assert found == {"n1": {"Pods": uids("v1", "v0"), "NumPDBViolations": 1}}


async def test_b50_each_node_is_judged_by_itself() -> None:
    site = full(16000)
    site.node("n2")
    site.running(holder("w", 0), "n2", "GPU-n2,NVIDIA,16000,10:;")
    site.node("n3", card("GPU-n3", devmem=4000))
    asked = {name: {"Pods": [], "NumPDBViolations": 0} for name in ("n1", "n2", "n3")}
    found = await victims(site, important(mem=10000), asked)
    assert {node: each["Pods"] for node, each in found.items()} == {"n1": uids("v0"), "n2": uids("w")}


async def test_b50_whole_pods_and_small_letters_are_read_too() -> None:
    site = full(16000)
    whole = {"n1": {"pods": [holder("v0", 0)], "numPDBViolations": 0}}
    for args in (
        {"Pod": important(mem=9000), "NodeNameToVictims": whole},
        {"pod": important(mem=9000), "nodeNameToMetaVictims": {"n1": {"pods": [{"uid": "uid-v0"}]}}},
        {"pod": important(mem=9000), "nodeNameToVictims": {"n1": None}},
    ):
        reply = await site.post("/preempt", args)
        assert json.loads(reply.body) == {"NodeNameToMetaVictims": {"n1": {"Pods": uids("v0"), "NumPDBViolations": 0}}}


async def test_b50_a_pod_without_devices_is_none_of_our_business() -> None:
    site = full(16000)
    asked = {"n1": {"Pods": uids("v0"), "NumPDBViolations": 2}}
    assert await victims(site, pod(gpu(), name="urgent", priority=5), asked) == asked


async def test_b50_a_quota_is_freed_only_by_pods_of_its_namespace() -> None:
    site = full(6000, 6000)
    site.quota(limits_nvidia_com__gpumem="12000")
    found = await victims(site, important(mem=4000), NOBODY)
    assert [each["UID"] for each in found["n1"]["Pods"]] == ["uid-v0"]
    other = important(mem=4000)
    other["metadata"]["namespace"] = "other"
    site.quota(namespace="other", limits_nvidia_com__gpumem="0")
    assert await victims(site, other, NOBODY) == {}


async def test_b50_mig_slices_of_evicted_pods_are_free() -> None:
    site = Site(preempt=True)
    profile = {"name": "7g.79gb", "memoryMB": 80000, "core": 100, "sliceCount": 7}
    profile["placements"] = [{"start": 0, "size": 8}]
    site.node("n1", card("GPU-n1", mode="mig", count=7, devmem=81920, migProfiles=[profile]))
    slices = '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-n1","profile":"7g.79gb",'
    slices += '"placement":{"start":0,"size":8}}]'
    lowly = holder("v0", 0)
    lowly["metadata"]["annotations"] = {"hami.io/vgpu-mig-allocations": slices}
    site.running(lowly, "n1", "GPU-n1,NVIDIA,80000,100:;")
    assert (await site.filter(important(mem=1000), "n1"))["NodeNames"] is None
    assert await victims(site, important(mem=1000), NOBODY) == {"n1": {"Pods": uids("v0"), "NumPDBViolations": 0}}


@pytest.mark.parametrize("body", [{}, {"Pod": None}, {"Pod": {}, "NodeNameToMetaVictims": []}, [], "x", 7])
async def test_b50_bodies_that_are_none_are_refused(body: object) -> None:
    reply = await full(16000).post("/preempt", body)
    assert reply.status == 400
    assert b"ExtenderPreemptionArgs" in reply.body


async def test_b50_with_the_verb_off_the_route_is_none_and_the_event_says_so() -> None:
    site = full(16000, preempt=False)
    assert (await site.post("/preempt", {"Pod": important(mem=9000)})).status == 404
    answer = await site.filter(important(mem=9000), "n1")
    assert answer["FailedAndUnresolvableNodes"] == answer["FailedNodes"]
    assert sum("preemption for cards is off: 1 nodes" in text for text in site.told) == 1
    site.told.clear()
    await site.filter(pod(gpu(gpu=1, mem=9000), name="plain"), "n1")
    assert site.told
    assert not any("preemption" in text for text in site.told)


async def test_b50_with_the_verb_on_only_nodes_where_eviction_may_help_are_open() -> None:
    site = full(16000)
    site.node("small", card("GPU-small", devmem=4000))
    site.running(holder("w", 0), "small", "GPU-small,NVIDIA,4000,10:;")
    site.node("empty", card("GPU-empty", devmem=4000))
    answer = await site.filter(important(mem=9000), "n1", "small", "empty", "unknown")
    assert set(answer["FailedNodes"]) == {"n1", "small", "empty", "unknown"}
    assert set(answer["FailedAndUnresolvableNodes"]) == {"small", "empty", "unknown"}
    assert not any("preemption" in text for text in site.told)
