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

from tests.cluster import results
from tests.cluster.api import Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import SCHEDULER_NAME, ControlPlane
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy_faults import Fault, When

NODES, PODS = 20, 200
MOST_PODS = 310
"""Half cards that there is room for, whatever the order: one node of room is left."""
TABLE = f"{PODS} pods at once on {NODES} nodes of 8 cards"
MOMENTS: tuple[When, When] = ("before", "after")
ALL_RUN_S = 600
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
SEED = int(os.environ.get("HAMI_TEST_SEED", "20261129"))


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # The backoff of kube-scheduler is short, or most of the time would pass between a restart and the next pod.
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("load"), max_backoff_s=1)
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x8"] * NODES)
        yield cluster


BY_NAME = {"schedulerName": SCHEDULER_NAME}
TAILS = ("/binding", "/events")
"""Ends of paths that say what is written; elsewhere the last part is a name."""


def batch() -> list[Object]:
    """The 200 pods: binpack and spread, one and two cards, in turn."""
    pods = []
    for index in range(PODS):
        policy = {"hami.io/node-scheduler-policy": "spread" if index % 2 else "binpack"}
        pods.append(gpu_pod(f"p{index:03d}", HALF_A_CARD, annotations=policy))
    return pods


def direct(pod: Object) -> Object:
    """The pod as it can be made while the webhook is dead: it goes around it."""
    labels = {"hami.io/webhook": "ignore"}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": {**pod["spec"], **BY_NAME}}


def assert_all_run_within_limits(cluster: Cluster, space: Workspace, count: int = PODS) -> None:
    """Every pod runs, the audit is clean, and each container got what its annotation says."""
    pods = space.wait_all_running(count, ALL_RUN_S)
    report = audit_cluster(cluster.plane.admin_kubeconfig)
    assert report.faults == []
    assert sum(len(held) for held in report.holders.values()) == count
    wrong = [pod["metadata"]["name"] for pod in pods if cluster.given_limits(pod) != cluster.granted_limits(pod)]
    assert wrong == []


def test_all_run_and_the_audit_is_clean(cluster: Cluster, workspace: Workspace) -> None:
    cluster.scheduler.proxy.reset()
    workspace.add_all(batch())
    assert_all_run_within_limits(cluster, workspace)
    # Events come last. What met a conflict is a figure: how often others write meanwhile is not ours to say.
    wait_until(lambda: done_writes(cluster)["POST events 201"] >= 2 * PODS, PATIENCE_S, "two events for each pod")
    kinds = done_writes(cluster)
    results.note(TABLE, "writes", ", ".join(f"{kind}: {count}" for kind, count in sorted(kinds.items())))
    taken = {kind: count for kind, count in kinds.items() if kind.endswith((" 200", " 201"))}
    # On a machine that stands still a bind may end without its token, and a plugin without its answer: a turn more.
    turns = PODS + failed_binds(workspace) + workspace.made_anew
    assert sum(taken.values()) <= 4 * turns * 1.1, f"more than four API requests a pod: {kinds}"


def failed_binds(space: Workspace) -> int:
    """How many binds have failed, as events tell."""
    failed = space.api.items(f"{space.path}/events", fieldSelector="reason=BindingFailed")
    return sum(event.get("count", 1) for event in failed)


def done_writes(cluster: Cluster) -> Counter[str]:
    """Writes of the scheduler since the last reset, by method, kind and answer."""
    return Counter(
        f"{write.method} {write.path.split('/')[-1 if write.path.endswith(TAILS) else -2]} {write.status}"
        for write in cluster.scheduler.proxy.writes
        if write.status is not None
    )


class Crowd:
    """The pods of a test, more and more of them while the scheduler is to be killed: there is always one that waits,
    however fast all others are bound. They go around the webhook, which may be dead."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self.count = 0

    def add_all(self, pods: list[Object]) -> None:
        self._space.add_all(map(direct, pods))
        self.count += len(pods)

    def grow(self) -> None:
        """One more, where none waits."""
        if not self._space.some_wait() and self.count < MOST_PODS:
            self._space.add_stubbornly([direct(gpu_pod(f"more-{self.count:03d}", HALF_A_CARD))])
            self.count += 1


def restart_and_kill(cluster: Cluster, crowd: Crowd, fault: Fault) -> None:
    """After a kill: a fresh process that meets this one from its first moment; returns when it is dead.

    Nothing is bound undisturbed in between, so that there are pods left to be killed at however slow we are.
    """
    proxy, process = cluster.scheduler.proxy, cluster.scheduler.process
    cluster.scheduler.start_to_be_killed([fault])

    def dead() -> bool:
        crowd.grow()
        return not process.alive

    wait_until(dead, PATIENCE_S, f"{fault} struck")
    proxy.reset()
    assert fault.struck, f"it died by itself: {process.tail()}"


def go_on(cluster: Cluster) -> None:
    """Nobody kills it any more."""
    cluster.scheduler.process.start()
    cluster.scheduler.wait_ready()


def every_write() -> list[tuple[When, str, str]]:
    """Each kind of write of the scheduler, before and after it reaches the API server."""
    kinds = [("PATCH", r"/nodes/[^/]+$"), ("POST", r"/binding$"), ("POST", r"/events$")]
    return [(when, method, path) for method, path in kinds for when in MOMENTS]


def test_scheduler_killed_before_and_after_each_write(cluster: Cluster, workspace: Workspace) -> None:
    pods, crowd = batch(), Crowd(workspace)
    cluster.scheduler.process.kill()
    crowd.add_all(pods[: PODS // 2])
    for when, method, path in every_write():
        restart_and_kill(cluster, crowd, Fault(when=when, method=method, path=path))
    go_on(cluster)
    workspace.add_stubbornly(pods[PODS // 2 :])
    assert_all_run_within_limits(cluster, workspace, crowd.count + PODS - PODS // 2)


def test_scheduler_killed_at_ten_random_points(cluster: Cluster, workspace: Workspace) -> None:
    print(f"HAMI_TEST_SEED={SEED}")
    chance, crowd = random.Random(SEED), Crowd(workspace)
    cluster.scheduler.process.kill()
    crowd.add_all(batch())
    for _ in range(10):
        restart_and_kill(cluster, crowd, Fault(when=chance.choice(MOMENTS), number=chance.randint(1, 40)))
    go_on(cluster)
    assert_all_run_within_limits(cluster, workspace, crowd.count)
