"""Two replicas, each a kube-scheduler and a `hami scheduler`, and the lease of one lost at bad moments."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import results
from tests.cluster.api import Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster, HamiScheduler
from tests.cluster.conftest import running
from tests.cluster.controlplane import SCHEDULER_NAME, ControlPlane
from tests.cluster.election import LEASE, LEASE_S, let_hami_follow, on_host, with_election
from tests.cluster.pods import Limits, Workspace, gpu_pod
from tests.cluster.processes import Process, free_ports, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy import Fault

TABLE = f"Two replicas, lease of {LEASE_S} s"
SMALL = {"gpu": 1, "gpumem": 7000, "gpucores": 5}
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
MANY = 200


@dataclasses.dataclass(slots=True)
class Replica:
    """What runs in one scheduler pod."""

    host: str
    kube_scheduler: Process
    hami: HamiScheduler

    def signal(self, number: signal.Signals) -> None:
        """To both processes, as a machine that hangs and goes on."""
        self.kube_scheduler.signal(number)
        self.hami.process.signal(number)

    def bindings(self) -> int:
        return sum(write.path.endswith("/binding") for write in self.hami.proxy.writes)


class Pair:
    """A cluster with two replicas."""

    def __init__(self, cluster: Cluster, replicas: list[Replica]) -> None:
        self.cluster = cluster
        self.api = cluster.api
        self.replicas = replicas

    def leader(self) -> Replica:
        holder = self.api.get(LEASE)["spec"].get("holderIdentity", "").rpartition("_")[0]
        return next(each for each in self.replicas if each.host == holder)

    def other(self, replica: Replica) -> Replica:
        return next(each for each in self.replicas if each is not replica)

    def revive(self, replica: Replica) -> None:
        """A stopped replica goes on. Its kube-scheduler ends when it finds its lease lost; kubelet starts it again."""
        replica.signal(signal.SIGCONT)
        wait_until(lambda: not replica.kube_scheduler.alive, 30, f"{replica.host}'s kube-scheduler has noticed")
        replica.kube_scheduler.start()

    def wait_leader(self, replica: Replica) -> None:
        wait_until(lambda: self.leader() is replica, 30, f"{replica.host} leads")

    def reset(self) -> None:
        for replica in self.replicas:
            replica.hami.proxy.reset()


@pytest.fixture(scope="module")
def pair(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("two"), max_backoff_s=1)
    health, extender = free_ports(2)
    config, second_config = plane.folder / "kube-scheduler.yaml", plane.folder / "kube-scheduler-b.yaml"
    config.write_text(with_election(config))
    second_config.write_text(config.read_text().replace(str(plane.ports.extender), str(extender)))
    plain = plane.hami_kube_scheduler
    plane.hami_kube_scheduler = on_host("host-a", plain, plain.log, {})
    ours = {str(config): str(second_config), str(plane.ports.hami_kube_scheduler): str(health)}
    second = on_host("host-b", plain, plane.logs / "kube-scheduler-b.log", ours)
    cluster = Cluster(plane, ["--leader-elect=true", "--identity=host-a"])
    hami = HamiScheduler(plane, ["--leader-elect=true", "--identity=host-b"], "hami-scheduler-b", extender)
    with running(cluster):
        try:
            let_hami_follow(cluster.api)
            hami.start()
            second.start()
            cluster.add_nodes(["a100x8"] * 3)
            plane.wait_http(second, f"https://127.0.0.1:{health}/healthz", 30)
            a = Replica("host-a", plane.hami_kube_scheduler, cluster.scheduler)
            yield Pair(cluster, [a, Replica("host-b", second, hami)])
        finally:
            second.kill()
            hami.stop()


@pytest.fixture
def cluster(pair: Pair) -> Cluster:
    """For `workspace`."""
    return pair.cluster


def pod(name: str, limits: Limits, policy: str = "binpack", **spec: Any) -> Object:
    """A complete pod that needs no webhook: the one that this cluster has may be stopped."""
    made = gpu_pod(name, limits, annotations={"hami.io/node-scheduler-policy": policy}, **spec)
    made["spec"]["schedulerName"] = SCHEDULER_NAME
    made["metadata"]["labels"] = {"hami.io/webhook": "ignore"}
    return made


def small_pods(count: int) -> list[Object]:
    return [pod(f"p{index:03d}", SMALL, "spread" if index % 2 else "binpack") for index in range(count)]


def assert_clean(pair: Pair, pods: list[Object], running: int) -> None:
    report = audit_cluster(pair.cluster.plane.admin_kubeconfig)
    assert report.faults == []
    assert sum(len(held) for held in report.holders.values()) == running
    at_work = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    wrong = [p["metadata"]["name"] for p in at_work if pair.cluster.given_limits(p) != pair.cluster.granted_limits(p)]
    assert wrong == []


@pytest.mark.parametrize("how", ["kube-scheduler killed", "both hang, and go on later"])
def test_lease_lost_in_the_middle_of_200_pods(pair: Pair, workspace: Workspace, how: str) -> None:
    pair.reset()
    old = pair.leader()
    new = pair.other(old)
    started = time.monotonic()
    pair.api.post_all(f"{workspace.path}/pods", small_pods(MANY))
    wait_until(lambda: old.bindings() >= 40, 60, "40 pods bound")
    lost = time.monotonic()
    if how == "kube-scheduler killed":
        old.kube_scheduler.kill()
    else:
        old.signal(signal.SIGSTOP)
    try:
        wait_until(lambda: new.bindings() > 0, 40, "the other replica binds", interval_s=0.01)
        results.note(TABLE, f"handover pause, {how}", f"{time.monotonic() - lost:5.1f} s")
        wait_until(lambda: new.bindings() >= 20, 40, "the other one is at work")
        pair.revive(old)
        pods = workspace.wait_all_running(MANY, 120)
        results.note(TABLE, f"200 pods run, {how}", f"{time.monotonic() - started:5.1f} s")
    finally:
        old.signal(signal.SIGCONT)
    assert 0 < old.bindings() < MANY
    assert_clean(pair, pods, MANY)


@pytest.mark.parametrize(
    ("when", "method", "path"),
    [("before", "POST", r"/binding$"), ("after", "POST", r"/binding$"), ("after", "PATCH", r"/nodes/[^/]+$")],
    ids=["binding on its way", "binding done, not answered", "token written, not answered"],
)
def test_stopped_in_the_hand_off_while_the_other_fills_the_node(
    pair: Pair, workspace: Workspace, when: str, method: str, path: str
) -> None:
    """17 pods for a node with room for 16; the first one's hand-off hangs with its scheduler."""
    pair.reset()
    old = pair.leader()
    new = pair.other(old)
    stopped, go = threading.Event(), threading.Event()

    def stop() -> None:
        old.signal(signal.SIGSTOP)
        stopped.set()

    old.hami.proxy.add(Fault(when=when, method=method, path=path, callback=stop, hold=go))  # type: ignore[arg-type]
    node = {"kubernetes.io/hostname": "node-01"}
    started = time.monotonic()
    try:
        workspace.add(pod("first", HALF_A_CARD, nodeSelector=node))
        assert stopped.wait(20)
        pair.wait_leader(new)
        pods = [pod(f"p{index:02d}", HALF_A_CARD, nodeSelector=node) for index in range(16)]
        pair.api.post_all(f"{workspace.path}/pods", pods)
        wait_until(lambda: running_in(workspace) >= 15, 60, "the other one fills the node")
    finally:
        go.set()
        pair.revive(old)
    wait_until(lambda: running_in(workspace) == 16, 60, "all that fit run")
    results.note(TABLE, f"stopped, {method} {when} it took effect", f"{time.monotonic() - started:5.1f} s")
    wait_until(
        lambda: "does not lead" in old.hami.log_tail(400) or "follows" in old.hami.log_tail(400), 20, "it follows"
    )
    assert_clean(pair, workspace.pods(), 16)


def running_in(space: Workspace) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in space.pods())
