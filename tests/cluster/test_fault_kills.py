"""The scheduler killed at each of its writes, one after another, before and after it takes effect.

Each process lives until its k-th write and is killed there; pods come all the while, so that there is always something
to write. Restarted at once, as kubelet would, it goes on with what the API server says.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster import results
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import SCHEDULER_NAME, ControlPlane
from tests.cluster.fakenodes import FakeCard, add_fake_node, pretend_allocated
from tests.cluster.pods import BIND_PHASE, Workspace, gpu_pod
from tests.cluster.processes import wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy import Fault, When

TABLE = "Scheduler killed at each of its writes (2 nodes of 8 cards)"
SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")
DEEPEST = 160 if SOAK else 10
"""40 pods are 160 writes: token, Binding and two events each."""
WAITING = 6
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("kills"), max_backoff_s=1)
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x8"] * 2)
        yield cluster


class Stream:
    """Keeps pods waiting to be scheduled: as many are removed from those that run as are added."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._numbers = itertools.count()

    def feed(self) -> None:
        pods = self._space.pods()
        at_work = [pod for pod in pods if pod["status"]["phase"] != "Pending"]
        failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
        for pod in at_work[: max(0, len(at_work) - 8)] or failed:
            self._space.api.delete(f"{self._space.path}/pods/{pod['metadata']['name']}")
        for _ in range(WAITING - (len(pods) - len(at_work))):
            self.add()

    def add(self) -> None:
        number = next(self._numbers)
        pod = gpu_pod(f"p{number:04d}", HALF_A_CARD, schedulerName=SCHEDULER_NAME)
        pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
        pod["metadata"]["annotations"] = {"hami.io/node-scheduler-policy": "spread" if number % 2 else "binpack"}
        self._space.add(pod)

    def struck(self, cluster: Cluster) -> bool:
        self.feed()
        return not cluster.scheduler.process.alive


def test_killed_at_each_write(cluster: Cluster, workspace: Workspace) -> None:
    stream = Stream(workspace)
    struck: Counter[str] = Counter()
    moments: tuple[When, When] = ("before", "after")
    with results.timed(TABLE, f"killed before and after each of the first {DEEPEST} writes, and all run"):
        for number, when in itertools.product(range(1, DEEPEST + 1), moments):
            proxy = cluster.scheduler.proxy
            proxy.reset()
            proxy.add(Fault(when=when, number=number, callback=cluster.scheduler.process.kill))
            wait_until(lambda: stream.struck(cluster), 60, f"killed {when} write {number}")
            last = proxy.writes[number - 1]
            struck[f"{when} {last.method} {last.path.split('/')[-1 if last.path.count('/') > 5 else -2]}"] += 1
            assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []
            proxy.reset()
            cluster.scheduler.process.start()
            cluster.scheduler.wait_ready()
        wait_until(lambda: all_run(workspace), 60, "every pod runs")
    results.note(TABLE, "where it was killed", ", ".join(f"{what}: {count}" for what, count in sorted(struck.items())))
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []
    assert {what for what in struck if "binding" in what} == {"before POST binding", "after POST binding"}


def all_run(space: Workspace) -> bool:
    pods = space.pods()
    for pod in pods:
        if pod["status"]["phase"] == "Failed":
            space.api.delete(f"{space.path}/pods/{pod['metadata']['name']}")
    waiting = [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] != "Running"]
    assert not waiting, waiting
    return True


def test_a_node_whose_pods_fail_gives_their_cards_back(cluster: Cluster, workspace: Workspace) -> None:
    """What a plugin marks as failed holds nothing; the pod that comes for it gets the card, and the token is no bar."""
    add_fake_node(cluster.api, "failing", [FakeCard("GPU-failing")], {})
    where = {"kubernetes.io/hostname": "failing"}
    with results.timed(TABLE, "a plugin marks four pods failed, four take their cards"):
        for number in range(4):
            name = f"f{number}"
            workspace.add(gpu_pod(name, {"gpu": 1, "gpumem": 9000}, nodeSelector=where))
            workspace.wait_bound(name)
            path = f"{workspace.path}/pods/{name}"
            cluster.api.annotate(path, {BIND_PHASE: "failed"})
            status = {"phase": "Failed", "reason": "UnexpectedAdmissionError"}
            cluster.api.merge_patch(f"{path}/status", {"status": status})
        workspace.add(gpu_pod("last", {"gpu": 1, "gpumem": 9000}, nodeSelector=where))
        pretend_allocated(cluster.api, workspace.wait_bound("last"))
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []
