"""The same asks with one part missing: what passes here would pass without us, and then it would show nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.api import Object
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import ALLOCATED, Workspace, annotation, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster

SHARE = {"gpu": 1, "gpumem": 3000, "gpucores": 30}


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x4"])
        yield cluster


def assert_a_share_runs(workspace: Workspace, name: str) -> None:
    """The control of the control: with everything in place the same ask works."""
    workspace.add(gpu_pod(name, SHARE))
    assert annotation(workspace.wait_phase(name), ALLOCATED)


class TestWithoutWebhook:
    @pytest.fixture(autouse=True)
    def _without_webhook(self, cluster: Cluster) -> Iterator[None]:
        cluster.scheduler.remove_webhook()
        yield
        cluster.scheduler.install_webhook()

    def test_memory_alone_goes_to_the_default_scheduler_and_waits(self, workspace: Workspace) -> None:
        workspace.add(gpu_pod("p", {"gpumem": 3000}))
        workspace.wait_event("p", "FailedScheduling", "Insufficient nvidia.com/gpumem")
        assert not annotation(workspace.pod("p"), ALLOCATED)

    def test_a_bare_count_bound_by_the_default_scheduler_is_refused_by_the_plugin(
        self, cluster: Cluster, workspace: Workspace
    ) -> None:
        workspace.add(gpu_pod("p", {"gpu": 1}))
        pod = workspace.wait_phase("p", "Failed")
        assert pod["status"]["reason"] == "UnexpectedAdmissionError"
        assert not annotation(pod, ALLOCATED)
        assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []


def test_webhook_back_again(cluster: Cluster, workspace: Workspace) -> None:
    assert_a_share_runs(workspace, "p")


def test_without_extender_gpu_pods_wait_and_others_run(cluster: Cluster, workspace: Workspace) -> None:
    workspace.add(gpu_pod("before", SHARE))
    workspace.wait_phase("before")
    cluster.scheduler.remove_webhook()  # its failure policy would refuse the pods here
    scheduler_named: Object = gpu_pod("gpu", SHARE, schedulerName="hami-scheduler")
    cluster.scheduler.process.kill()
    try:
        workspace.add(scheduler_named)
        workspace.add(gpu_pod("cpu", {}))
        workspace.add(gpu_pod("cpu-by-name", {}, schedulerName="hami-scheduler"))
        workspace.wait_phase("cpu")
        workspace.wait_phase("cpu-by-name")
        workspace.wait_event("gpu", "FailedScheduling")
        assert workspace.pod("gpu")["status"]["phase"] == "Pending"
        assert not annotation(workspace.pod("gpu"), ALLOCATED)
        assert workspace.pod("before")["status"]["phase"] == "Running"
    finally:
        cluster.scheduler.process.start()
        cluster.scheduler.wait_ready()
        cluster.scheduler.install_webhook()
    workspace.wait_phase("gpu")


def test_with_the_plugin_stopped_no_card_is_given(cluster: Cluster, workspace: Workspace) -> None:
    (node,) = cluster.nodes.values()
    node.plugin.stop()
    try:
        wait_until(lambda: not cluster.node_is_ready(node.name), PATIENCE_S, "no shares in allocatable")
        workspace.add_refused(gpu_pod("p", SHARE), "FailedScheduling")
        assert not annotation(workspace.pod("p"), ALLOCATED)
    finally:
        node.plugin.start()
    cluster.wait_node(node)
    workspace.wait_phase("p")
