"""kube-scheduler stand-in: extender calls, failures in the real words; and the whole with a device plugin."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from hami.sim.cluster import SimCluster
from hami.sim.objects import dig
from hami.sim.scheduler import ExtenderConfig
from tests.sim.scheduling import (
    bound,
    events,
    node,
    path,
    plain_pod,
    scheduled_condition,
    start,
    unschedulable,
    until_event,
)
from tests.sim.toys import GPU, ToyExtender, ToyPlugin, gpu_pod


async def test_the_extender_gets_names_only_and_its_node_is_bound_by_it(
    cluster: SimCluster, extender: ToyExtender
) -> None:
    for name in ("n1", "n2", "n3"):
        await cluster.apply(node(name))
    extender.fits = {"n2"}
    await start(cluster, extender.config())
    await cluster.apply(gpu_pod("p"))
    pod = await cluster.until(path("p"), bound)
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"]) == ("n2", {"toy/node": "n2"})
    [args] = extender.filters
    assert sorted(args["NodeNames"]) == ["n1", "n2", "n3"]
    assert args["Nodes"] is None
    assert args["Pod"]["metadata"]["uid"] == pod["metadata"]["uid"]
    assert "kind" not in args["Pod"]
    [bind] = extender.binds
    assert bind == {"PodName": "p", "PodNamespace": "default", "PodUID": pod["metadata"]["uid"], "Node": "n2"}


async def test_pods_that_no_extender_manages_do_not_reach_it(cluster: SimCluster, extender: ToyExtender) -> None:
    await cluster.apply(node("n1"))
    extender.status = 500
    await start(cluster, extender.config())
    await cluster.apply(plain_pod("p"))
    await cluster.until(path("p"), bound)
    assert extender.filters == []


async def test_refusals_of_the_extender(cluster: SimCluster, extender: ToyExtender) -> None:
    for name in ("n1", "n2", "n3"):
        await cluster.apply(node(name))
    extender.unresolvable = {"n3"}
    await start(cluster, extender.config())
    await cluster.apply(gpu_pod("p"))
    condition = scheduled_condition(await cluster.until(path("p"), unschedulable))
    assert condition["reason"] == "Unschedulable"
    assert condition["message"] == (
        "0/3 nodes are available: 3 1/1 CardInsufficientMemory. no new claims to deallocate, "
        "preemption: 0/3 nodes are available: "
        "1 Preemption is not helpful for scheduling, 2 No preemption victims found for incoming pod."
    )


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        ("error", "calcScore failed"),
        ("code", "failed filter with extender at URL"),
        ("slow", "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"),
        ("down", "dial tcp 127.0.0.1:1: connect:"),
        ("stranger", "which is not found in the input node list"),
    ],
)
async def test_errors_of_the_extender_are_retried(
    cluster: SimCluster, extender: ToyExtender, failure: str, words: str
) -> None:
    await cluster.apply(node("n1"))
    config = extender.config()
    if failure == "error":
        extender.filter_error = "calcScore failed"
    elif failure == "code":
        extender.status = 503
    elif failure == "slow":
        extender.delay_s, config = 5.0, extender.config(http_timeout_s=0.05)
    elif failure == "down":
        config = ExtenderConfig("http://127.0.0.1:1", managed=frozenset({GPU}), ignored=frozenset({GPU}))
    else:
        extender.fits = {"n9"}
    if failure == "stranger":
        extender.fits = set()
        original = extender._filter

        async def lie(request: Any) -> Any:
            await original(request)
            return web.json_response({"NodeNames": ["n9"], "Error": ""})

        await extender.stop()
        extender._filter = lie  # type: ignore[method-assign]
        await extender.start()
        config = extender.config()
    await start(cluster, config)
    await cluster.apply(gpu_pod("p"))
    condition = scheduled_condition(await cluster.until(path("p"), unschedulable))
    assert condition["reason"] == "SchedulerError"
    assert words in condition["message"]
    if failure in ("error", "code"):
        extender.filter_error, extender.status, extender.fits = "", 200, {"n1"}
        await cluster.until(path("p"), bound)


async def test_a_failed_bind_gives_the_room_back_and_is_tried_again(cluster: SimCluster, extender: ToyExtender) -> None:
    await cluster.apply(node("n1", cpu="1"))
    extender.fits, extender.bind_error = {"n1"}, "node n1 has been locked within 5m0s: node lock contention"
    await start(cluster, extender.config())
    pod = gpu_pod("p")
    pod["spec"]["containers"][0]["resources"] = {"limits": {GPU: 1, "cpu": "1"}}
    await cluster.apply(pod)
    condition = scheduled_condition(await cluster.until(path("p"), unschedulable))
    assert (condition["reason"], condition["message"]) == ("SchedulerError", extender.bind_error)
    extender.bind_error = ""
    await cluster.until(path("p"), bound)


async def test_end_to_end_with_extender_and_device_plugin(cluster: SimCluster, extender: ToyExtender) -> None:
    plugins = []
    for name in ("n1", "n2"):
        await cluster.add_node(name)
        plugins.append(ToyPlugin(cluster.plugin_dir(name), [f"{name}-{index}" for index in range(3)]))
        await plugins[-1].start()
        await cluster.until(f"/api/v1/nodes/{name}", lambda node: dig(node, "status", "allocatable", GPU) == "3")
    extender.fits = {"n2"}
    await start(cluster, extender.config())
    pod = gpu_pod("p", 2)
    pod["metadata"]["annotations"] = {"sim.hami.io/run-seconds": "0.2"}
    await cluster.apply(pod)
    await cluster.until(path("p"), lambda pod: dig(pod, "status", "phase") == "Running")
    [allocation] = cluster.kubelets["n2"].allocations
    assert len(allocation.device_ids) == 2
    assert cluster.kubelets["n1"].allocations == []
    await cluster.until(path("p"), lambda pod: dig(pod, "status", "phase") == "Succeeded")
    await until_event(cluster, "p", "Scheduled")
    assert sorted(reason for _, reason, _ in await events(cluster, "p")) == ["Scheduled", "Started"]
    for plugin in plugins:
        await plugin.stop()
