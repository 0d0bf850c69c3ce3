"""kube-scheduler stand-in: which pods wait, for how long, and what wakes them."""

from __future__ import annotations

import pytest

from hami.sim.cluster import SimCluster
from hami.sim.scheduler import SchedulerConfig
from hami.sim.scheduler.queue import SchedulingQueue
from tests.sim.scheduling import (
    bound,
    node,
    path,
    plain_pod,
    start,
    unschedulable,
)
from tests.sim.toys import ToyExtender, gpu_pod


@pytest.mark.parametrize("wake", ["node annotation", "pod deleted", "other pod changed", "pod changed", "node added"])
async def test_what_wakes_a_refused_pod(cluster: SimCluster, extender: ToyExtender, wake: str) -> None:
    await cluster.apply(node("n1"))
    await cluster.apply(plain_pod("other", nodeName="n1"))
    await start(cluster, extender.config())
    await cluster.apply(gpu_pod("p"))
    await cluster.until(path("p"), unschedulable)
    extender.fits = {"n1"}
    before = len(extender.filters)
    patch = {"metadata": {"annotations": {"a": "b"}}}
    merge = "application/merge-patch+json"
    if wake == "node annotation":
        await cluster.client.request("PATCH", "/api/v1/nodes/n1", patch, content_type=merge)
    elif wake == "pod deleted":
        await cluster.client.request("DELETE", path("other"), {"gracePeriodSeconds": 0})
    elif wake == "other pod changed":
        await cluster.client.request("PATCH", path("other"), patch, content_type=merge)
    elif wake == "pod changed":
        await cluster.client.request("PATCH", path("p"), patch, content_type=merge)
    else:
        await cluster.apply(node("n2"))
    await cluster.until(path("p"), bound)
    assert len(extender.filters) == before + 1
    assert extender.filters[-1]["Pod"]["metadata"]["name"] == "p"


async def test_a_refused_pod_sleeps_until_something_happens(cluster: SimCluster, extender: ToyExtender) -> None:
    await cluster.apply(node("n1"))
    await start(cluster, extender.config())
    await cluster.apply(gpu_pod("p"))
    await cluster.until(path("p"), unschedulable)
    heartbeat = {"status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "x"}]}}
    strategic = "application/strategic-merge-patch+json"
    await cluster.client.request("PATCH", "/api/v1/nodes/n1/status", heartbeat, content_type=strategic)
    await cluster.apply(gpu_pod("q"))
    await cluster.until(path("q"), unschedulable)
    seen = [args["Pod"]["metadata"]["name"] for args in extender.filters]
    assert seen[-1] == "q"
    heartbeat["status"]["conditions"][0]["lastHeartbeatTime"] = "y"
    await cluster.client.request("PATCH", "/api/v1/nodes/n1/status", heartbeat, content_type=strategic)
    await cluster.apply(plain_pod("r"))
    await cluster.until(path("r"), bound)
    assert [args["Pod"]["metadata"]["name"] for args in extender.filters[: len(seen)]] == seen


async def test_backoff_doubles_and_errors_wait_it_out() -> None:
    now = 100.0
    queue = SchedulingQueue(SchedulerConfig(), clock=lambda: now)
    pod = {"metadata": {"uid": "u", "name": "p"}, "spec": {}}
    queue.add(pod)
    waits = []
    for _ in range(6):
        queued = await queue.pop()
        queue.failed(queued, refused=False)
        assert list(queue.backoff) == ["u"]
        waits.append(queue.backoff_s(queued))
        now += waits[-1]
    assert waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


async def test_a_change_during_the_cycle_is_not_missed() -> None:
    queue = SchedulingQueue(SchedulerConfig(pop_from_backoff=False))
    queue.add({"metadata": {"uid": "u", "name": "p"}, "spec": {}})
    queued = await queue.pop()
    queue.cluster_changed(matters_to_plugins=False)
    queue.failed(queued, refused=True, by_extender=True)
    assert (list(queue.backoff), list(queue.unschedulable)) == (["u"], [])


@pytest.mark.parametrize(("by_extender", "matters", "woken"), [(True, False, 1), (False, False, 0), (False, True, 1)])
async def test_who_is_woken_by_what(by_extender: bool, matters: bool, woken: int) -> None:
    queue = SchedulingQueue(SchedulerConfig(pop_from_backoff=False))
    queue.add({"metadata": {"uid": "u", "name": "p"}, "spec": {}})
    queue.failed(await queue.pop(), refused=True, by_extender=by_extender)
    assert list(queue.unschedulable) == ["u"]
    queue.cluster_changed(matters_to_plugins=matters)
    assert len(queue.backoff) == woken
