"""Hand-off tokens that a killed scheduler left behind, laid out so that pods wait for one another.

Each pod may run on one node only, and that node's token names the other pod: whoever waits for a token until its
owner is bound waits for ever. The load test met this by chance; here it is certain.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import pytest

from tests.cluster.api import Object
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import SCHEDULER_NAME, ControlPlane
from tests.cluster.fakenodes import FakeCard, add_fake_node
from tests.cluster.pods import NODE_LOCK, Workspace, gpu_pod
from tests.tools.audit import audit_cluster

SHARE = {"gpu": 1, "gpumem": 1000}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        yield cluster


def pinned(name: str, node: str) -> Object:
    """A pod for one node that needs no webhook."""
    pod = gpu_pod(name, SHARE, nodeSelector={"kubernetes.io/hostname": node}, schedulerName=SCHEDULER_NAME)
    pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    return pod


def test_pods_that_hold_each_others_tokens_are_bound(cluster: Cluster, workspace: Workspace) -> None:
    names = ["p", "q", "r"]
    nodes = {name: f"stale-{name}" for name in names}
    for node in nodes.values():
        add_fake_node(cluster.api, node, [FakeCard(f"GPU-{node}")], {})
    cluster.scheduler.process.kill()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for name, owner in zip(names, [*names[1:], names[0]], strict=True):
        workspace.add(pinned(name, nodes[name]))
        cluster.api.annotate(f"/api/v1/nodes/{nodes[name]}", {NODE_LOCK: f"{now},{workspace.name},{owner}"})
    cluster.scheduler.process.start()
    cluster.scheduler.wait_ready()
    for name in names:
        assert workspace.wait_bound(name)["spec"]["nodeName"] == nodes[name]
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []
