"""kube-scheduler stand-in: node checks, refusals in the real words, sampling, configuration."""

from __future__ import annotations

from typing import Any

import pytest

from hami.sim.apiserver.kinds import PODS
from hami.sim.cluster import SimCluster
from hami.sim.objects import Obj
from hami.sim.scheduler.config import load
from hami.sim.scheduler.nodes import nodes_to_find
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
from tests.sim.toys import GPU, gpu_pod


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
