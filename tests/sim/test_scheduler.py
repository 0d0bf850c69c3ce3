"""kube-scheduler stand-in: node checks, extender calls, failures in the real words, queues, wake-ups; and the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from hami.sim.apiserver.kinds import EVENTS, PODS
from hami.sim.cluster import SimCluster
from hami.sim.objects import Obj, dig
from hami.sim.scheduler import ExtenderConfig, SchedulerConfig
from hami.sim.scheduler.config import load
from hami.sim.scheduler.nodes import nodes_to_find
from hami.sim.scheduler.queue import SchedulingQueue
from tests.sim.toys import GPU, ToyExtender, ToyPlugin, gpu_pod


def path(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}"


def bound(pod: Obj) -> bool:
    return bool(dig(pod, "spec", "nodeName"))


def scheduled_condition(pod: Obj) -> Obj:
    conditions = dig(pod, "status", "conditions", default=[])
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def unschedulable(pod: Obj) -> bool:
    return scheduled_condition(pod).get("status") == "False"


def node(name: str, cpu: str = "8", gpus: int | None = None, **spec: Any) -> Obj:
    amounts = {"cpu": cpu, "memory": "32Gi", "pods": "110"}
    if gpus is not None:
        amounts[GPU] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": name}},
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def plain_pod(name: str, cpu: str = "1", **spec: Any) -> Obj:
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **spec},
    }


@pytest.fixture
async def cluster() -> AsyncIterator[SimCluster]:
    async with SimCluster() as running:
        yield running


@pytest.fixture
async def extender(cluster: SimCluster) -> AsyncIterator[ToyExtender]:
    running = ToyExtender(cluster.base_url)
    await running.start()
    yield running
    await running.stop()


FAST = {"initial_backoff_s": 0.05, "max_backoff_s": 0.2}


async def start(cluster: SimCluster, *extenders: ExtenderConfig, **changes: Any) -> None:
    await cluster.start_scheduler(SchedulerConfig(("default-scheduler", "hami-scheduler"), extenders, **FAST | changes))


async def until_event(cluster: SimCluster, name: str, reason: str) -> None:
    """Wait until the pod has an event of that reason."""
    subscription = cluster.api.store.subscribe(EVENTS, None)
    async with asyncio.timeout(60):
        while not any(reason == have for _, have, _ in await events(cluster, name)):
            await subscription.get()
    cluster.api.store.unsubscribe(EVENTS, subscription)


async def events(cluster: SimCluster, name: str) -> list[tuple[str, str, str]]:
    selector = f"involvedObject.name={name}"
    found = await cluster.client.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")
    return [(one["type"], one["reason"], one["message"]) for one in found["items"]]


async def test_a_pod_without_extender_is_bound_by_the_scheduler(cluster: SimCluster) -> None:
    await cluster.apply(node("n1"))
    await start(cluster)
    await cluster.apply(plain_pod("p"))
    pod = await cluster.until(path("p"), bound)
    assert scheduled_condition(pod)["status"] == "True"
    await until_event(cluster, "p", "Scheduled")
    assert await events(cluster, "p") == [("Normal", "Scheduled", "Successfully assigned default/p to n1")]


@pytest.mark.parametrize(
    ("nodes", "pod", "text"),
    [
        ([], plain_pod("p"), "no nodes available to schedule pods"),
        (
            [node("n1", cpu="500m"), node("n2", cpu="500m", unschedulable=True)],
            plain_pod("p"),
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) were unschedulable. "
            "no new claims to deallocate, preemption: 0/2 nodes are available: "
            "2 Preemption is not helpful for scheduling.",
        ),
        (
            [node("n1"), node("n2", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}])],
            plain_pod("p", nodeSelector={"zone": "n2"}),
            "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
            "1 node(s) had untolerated taint(s). "
            "no new claims to deallocate, preemption: 0/2 nodes are available: "
            "2 Preemption is not helpful for scheduling.",
        ),
        (
            [node("n1", gpus=0)],
            gpu_pod("p"),
            f"0/1 nodes are available: 1 Insufficient {GPU}. "
            "no new claims to deallocate, preemption: 0/1 nodes are available: "
            "1 Preemption is not helpful for scheduling.",
        ),
    ],
)
async def test_refusals_of_the_scheduler_itself(cluster: SimCluster, nodes: list[Obj], pod: Obj, text: str) -> None:
    for one in nodes:
        await cluster.apply(one)
    await start(cluster)
    await cluster.apply(pod)
    condition = scheduled_condition(await cluster.until(path("p"), unschedulable))
    assert (condition["reason"], condition["message"]) == ("Unschedulable", text)
    assert ("Warning", "FailedScheduling", text) in await events(cluster, "p")


async def test_tolerations_and_affinity_let_a_pod_in(cluster: SimCluster) -> None:
    await cluster.apply(node("n1"))
    await cluster.apply(node("n2", taints=[{"key": "a", "value": "b", "effect": "NoSchedule"}], unschedulable=True))
    await start(cluster)
    term = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["n2"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    tolerations = [
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
    ]
    await cluster.apply(plain_pod("p", affinity={"nodeAffinity": required}, tolerations=tolerations))
    assert (await cluster.until(path("p"), bound))["spec"]["nodeName"] == "n2"


async def test_requests_of_bound_and_assumed_pods_count(cluster: SimCluster) -> None:
    await cluster.apply(node("n1", cpu="2"))
    await start(cluster)
    for index in range(5):
        await cluster.apply(plain_pod(f"p{index}"))
    await cluster.until(path("p4"), unschedulable)
    assert sum(bound(stored.obj) for stored in cluster.api.store.items(PODS)) == 2


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


async def test_gated_and_foreign_pods_are_left_alone(cluster: SimCluster) -> None:
    await cluster.apply(node("n1"))
    await start(cluster)
    await cluster.apply(plain_pod("gated", schedulingGates=[{"name": "wait"}]))
    await cluster.apply(plain_pod("foreign", schedulerName="somebody-else"))
    await cluster.apply(plain_pod("mine"))
    await cluster.until(path("mine"), bound)
    for name in ("gated", "foreign"):
        assert not bound(await cluster.until(path(name), bool))
    ungated = [{"op": "remove", "path": "/spec/schedulingGates"}]
    await cluster.client.request("PATCH", path("gated"), ungated, content_type="application/json-patch+json")
    await cluster.until(path("gated"), bound)


@pytest.mark.parametrize(
    ("total", "percentage", "found"),
    [(3, 0, 3), (99, 0, 99), (100, 0, 100), (500, 0, 230), (5000, 0, 500), (5000, 100, 5000), (1000, 1, 100)],
)
def test_sampling_rule(total: int, percentage: int, found: int) -> None:
    assert nodes_to_find(total, percentage) == found


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


def test_the_real_configuration_file_is_understood(tmp_path: Any) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
profiles: [{schedulerName: hami-scheduler}]
extenders:
- urlPrefix: https://127.0.0.1:443
  filterVerb: filter
  bindVerb: bind
  nodeCacheCapable: true
  httpTimeout: 30s
  enableHTTPS: true
  tlsConfig: {insecure: true}
  managedResources:
  - {name: nvidia.com/gpu, ignoredByScheduler: true}
  - {name: nvidia.com/priority}
"""
    )
    config = load(file)
    [extender] = config.extenders
    assert (config.scheduler_names, config.percentage_of_nodes_to_score) == (("hami-scheduler",), 100)
    assert (extender.http_timeout_s, extender.verify_tls) == (30.0, False)
    assert set(extender.managed) == {"nvidia.com/gpu", "nvidia.com/priority"}
    assert set(config.ignored) == {"nvidia.com/gpu"}


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
