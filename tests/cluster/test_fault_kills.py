"""The scheduler killed at each of its writes, before and after it takes effect: by kind, and by number.

Which kind of write is a process's k-th depends on timing, so every kind has a turn of its own, and those that only a
failed bind brings are provoked. Each process meets its fault from its first moment; pods come all the while, so that
there is always something to write. Restarted at once, as kubelet would, it goes on with what the API server says.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator

import pytest

from tests.cluster import results
from tests.cluster.api import Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import SCHEDULER_NAME, ControlPlane
from tests.cluster.fakenodes import FakeCard, add_fake_node, pretend_allocated
from tests.cluster.pods import BIND_PHASE, Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy_faults import Fault, When

TABLE = "Scheduler killed at each of its writes (2 nodes of 8 cards)"
SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")
DEEPEST = 160 if SOAK else 3
"""40 pods are 160 writes: token, Binding and two events each."""
MOMENTS: tuple[When, When] = ("before", "after")
ALWAYS = 10**9
NODE, EVENT = r"/nodes/[^/]+$", r"/events"
WAITING = 6
TURNS = [f"p{number}" for number in range(5)]
KILLED_S = 300
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


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of write. `provoked_by`: what Bindings are answered meanwhile, because nothing else brings it about."""

    what: str
    method: str
    path: str
    body: str = ""
    provoked_by: int | None = None

    def faults(self, when: When) -> list[Fault]:
        """The kill, and what brings the write about."""
        killed = Fault(when=when, method=self.method, path=self.path, body=self.body)
        provoked = Fault(path=r"/binding$", status=self.provoked_by, times=ALWAYS)
        return [killed] if self.provoked_by is None else [killed, provoked]


KINDS = [
    Kind("token taken", "PATCH", NODE, r'"hami\.io/mutex\.lock":"'),
    Kind("Binding", "POST", r"/binding$"),
    Kind("event of the choice", "POST", EVENT, "FilteringSucceed"),
    Kind("event of the bind", "POST", EVENT, "BindingSucceed"),
    Kind("token of a refused bind given back", "PATCH", NODE, r'"hami\.io/mutex\.lock":null', provoked_by=403),
    Kind("event of a refused bind", "POST", EVENT, "BindingFailed", provoked_by=403),
    Kind("event of a refused bind, again", "PATCH", EVENT, provoked_by=403),
    Kind("epoch of a bind tried again", "PATCH", NODE, r"^(?!.*mutex\.lock).*bind-epoch", provoked_by=409),
]


def kill_at(cluster: Cluster, stream: Stream, faults: list[Fault]) -> None:
    """A fresh process with the first of these faults armed as a kill; returns when it is dead and the audit clean."""
    proxy, process = cluster.scheduler.proxy, cluster.scheduler.process
    cluster.scheduler.start_to_be_killed(faults)
    wait_until(lambda: stream.struck(cluster), KILLED_S, f"killed at {faults[0]}")
    proxy.reset()
    assert faults[0].struck, f"it died by itself: {process.tail()}"
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []


def go_on(cluster: Cluster, space: Workspace) -> None:
    """Undisturbed again, every pod runs."""
    cluster.scheduler.process.start()
    cluster.scheduler.wait_ready()
    wait_until(lambda: all_run(space), PATIENCE_S, "every pod runs")
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []


def test_killed_at_each_kind_of_write(cluster: Cluster, workspace: Workspace) -> None:
    stream = Stream(workspace)
    with results.timed(TABLE, f"killed before and after each of {len(KINDS)} kinds of write, and all run"):
        for kind, when in itertools.product(KINDS, MOMENTS):
            kill_at(cluster, stream, kind.faults(when))
        go_on(cluster, workspace)


def test_killed_at_each_of_the_first_writes(cluster: Cluster, workspace: Workspace) -> None:
    stream = Stream(workspace)
    with results.timed(TABLE, f"killed before and after each of the first {DEEPEST} writes, and all run"):
        for number, when in itertools.product(range(1, DEEPEST + 1), MOMENTS):
            kill_at(cluster, stream, [Fault(when=when, number=number)])
        go_on(cluster, workspace)


@pytest.mark.parametrize("when", MOMENTS)
def test_killed_at_the_write_that_wakes_refused_pods(cluster: Cluster, workspace: Workspace, when: When) -> None:
    """kube-scheduler does not watch quotas: our write on a node makes it ask again.

    It also asks again by itself when anybody writes to a node, as plugins do. Where that comes first nobody needs to be
    woken, and the next pod has its turn, larger than what the quota had become.
    """
    proxy, process = cluster.scheduler.proxy, cluster.scheduler.process
    proxy.reset()
    quota, hard_mib = f"{workspace.path}/resourcequotas", 1000
    cluster.api.post(quota, {"metadata": {"name": "team"}, "spec": hard(hard_mib)})
    with results.timed(TABLE, f"killed {when} it woke a refused pod, until that runs"):
        for name in TURNS:
            pod = gpu_pod(name, {"gpu": 1, "gpumem": hard_mib + 1000}, schedulerName=SCHEDULER_NAME)
            pod["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
            workspace.add(pod)
            wait_until(functools.partial(refused_or_bound, workspace, name), PATIENCE_S, f"{name} refused")
            hard_mib = 2 * hard_mib + 2000  # enough for all so far
            fault = Fault(when=when, method="PATCH", path=NODE, body=r"hami\.io/room-freed", callback=process.kill)
            proxy.add(fault)
            cluster.api.merge_patch(f"{quota}/team", {"spec": hard(hard_mib)})
            wait_until(lambda name=name: not process.alive or bound(workspace, name), PATIENCE_S, f"{name} woken")  # type: ignore[misc]
            proxy.reset()
            if fault.struck:
                break
        assert fault.struck, f"no pod had to be woken: {process.tail()}"
        wait_until(lambda: not process.alive, PATIENCE_S, "killed as it wakes the pod")
        go_on(cluster, workspace)


def hard(mib: int) -> Object:
    """Of a quota."""
    return {"hard": {"limits.nvidia.com/gpumem": str(mib)}}


def bound(space: Workspace, name: str) -> bool:
    return "nodeName" in space.pod(name)["spec"]


def refused_or_bound(space: Workspace, name: str) -> bool:
    """A pod that is looked at before our scheduler has heard of the quota is bound."""
    refused = any("ResourceQuotaNotFit" in event.message for event in space.events(name))
    return refused or bound(space, name)


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
