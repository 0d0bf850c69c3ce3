"""200 pods at once on 20 nodes of 8 cards: undisturbed, and with the scheduler killed again and again.

Pods are made so that two fit on a card and no order of placement can strand one; the auditor judges the end from
API objects alone. Kills are SIGKILL; the test restarts the scheduler as a kubelet would.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster.api import Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy import Fault, When

NODES, PODS = 20, 200
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
SEED = int(os.environ.get("HAMI_TEST_SEED", "20261129"))


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # The backoff of kube-scheduler is short, or most of the time would pass between a restart and the next pod.
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("load"), max_backoff_s=1)
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x8"] * NODES)
        yield cluster


TAILS = ("/binding", "/events")
"""Ends of paths that say what is written; elsewhere the last part is a name."""


def batch() -> list[Object]:
    """The 200 pods: binpack and spread, one and two cards, in turn."""
    pods = []
    for index in range(PODS):
        policy = {"hami.io/node-scheduler-policy": "spread" if index % 2 else "binpack"}
        pods.append(gpu_pod(f"p{index:03d}", HALF_A_CARD, annotations=policy))
    return pods


def assert_all_run_within_limits(cluster: Cluster, space: Workspace, timeout_s: float) -> None:
    """Every pod runs, the audit is clean, and each container got what its annotation says."""
    pods = space.wait_all_running(PODS, timeout_s)
    report = audit_cluster(cluster.plane.admin_kubeconfig)
    assert report.faults == []
    assert sum(len(held) for held in report.holders.values()) == PODS
    wrong = [pod["metadata"]["name"] for pod in pods if cluster.given_limits(pod) != cluster.granted_limits(pod)]
    assert wrong == []


def test_all_run_and_the_audit_is_clean(cluster: Cluster, workspace: Workspace) -> None:
    cluster.scheduler.proxy.reset()
    cluster.api.post_all(f"{workspace.path}/pods", batch())
    assert_all_run_within_limits(cluster, workspace, 120)
    writes = [write for write in cluster.scheduler.proxy.writes if write.status is not None]
    kinds = Counter(
        f"{write.method} {write.path.split('/')[-1 if write.path.endswith(TAILS) else -2]} {write.status}"
        for write in writes
    )
    assert len(writes) <= 4 * PODS * 1.1, f"more than four API requests a pod: {kinds}"


def kill_and_restart(cluster: Cluster, fault: Fault, timeout_s: float = 60) -> None:
    """Arm a fault that kills the scheduler, wait until it struck, start the scheduler again."""
    proxy = cluster.scheduler.proxy
    proxy.reset()
    fault.callback = cluster.scheduler.process.kill
    proxy.add(fault)
    wait_until(lambda: not cluster.scheduler.process.alive, timeout_s, f"{fault} struck")
    proxy.reset()
    cluster.scheduler.process.start()
    cluster.scheduler.wait_ready()


def every_write() -> list[tuple[When, str, str]]:
    """Each kind of write of the scheduler, before and after it reaches the API server."""
    kinds = [("PATCH", r"/nodes/[^/]+$"), ("POST", r"/binding$"), ("POST", r"/events$")]
    moments: tuple[When, When] = ("before", "after")
    return [(when, method, path) for method, path in kinds for when in moments]


def test_scheduler_killed_before_and_after_each_write(cluster: Cluster, workspace: Workspace) -> None:
    pods = batch()
    cluster.api.post_all(f"{workspace.path}/pods", pods[: PODS // 2])
    for when, method, path in every_write():
        kill_and_restart(cluster, Fault(when=when, method=method, path=path))
    moments: tuple[When, When] = ("before", "after")
    workspace.add_stubbornly(pods[PODS // 2 :])
    for number in range(1, 5):
        for when in moments:
            kill_and_restart(cluster, Fault(when=when, number=number))
    assert_all_run_within_limits(cluster, workspace, 180)


def test_scheduler_killed_at_ten_random_points(cluster: Cluster, workspace: Workspace) -> None:
    print(f"HAMI_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    cluster.api.post_all(f"{workspace.path}/pods", batch())
    for _ in range(10):
        moment: When = chance.choice(("before", "after"))
        kill_and_restart(cluster, Fault(when=moment, number=chance.randint(1, 40)))
    assert_all_run_within_limits(cluster, workspace, 180)
