"""Two replicas, each a kube-scheduler and a `hami scheduler`, and the lease of one lost at bad moments."""

from __future__ import annotations

import dataclasses
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
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
from tests.cluster.processes import PATIENCE_S, POLL_INTERVAL_S, Process, free_ports, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy_faults import Fault

TABLE = f"Two replicas, lease of {LEASE_S} s"
SMALL = {"gpu": 1, "gpumem": 7000, "gpucores": 5}
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
MANY = 200
TOKEN = r'"hami\.io/mutex\.lock":"'
FOLLOWING = ("does not lead", '"follows"')


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
        self._down: list[Replica] = []

    def leader(self) -> Replica | None:
        holder = self.api.get(LEASE)["spec"].get("holderIdentity", "").rpartition("_")[0]
        return next((each for each in self.replicas if each.host == holder), None)

    def other(self, replica: Replica) -> Replica:
        return next(each for each in self.replicas if each is not replica)

    def until(self, probe: Callable[[], object], what: str, interval_s: float = POLL_INTERVAL_S) -> None:
        """Wait, and be kubelet meanwhile: a kube-scheduler that loses its lease ends, by chance on a busy machine."""

        def tended() -> object:
            for replica in self.replicas:
                if replica not in self._down and not replica.kube_scheduler.alive:
                    replica.kube_scheduler.start()
            return probe()

        wait_until(tended, 2 * PATIENCE_S, what, interval_s)

    def take_down(self, replica: Replica, how: Callable[[], None]) -> None:
        """Harm a replica; it stays so until it is revived."""
        self._down.append(replica)
        how()

    def revive(self, replica: Replica) -> None:
        """A stopped replica goes on. Its kube-scheduler ends when it finds its lease lost; kubelet starts it again.

        It may get it back instead, where the other one lost it meanwhile, by chance on a busy machine.
        """
        replica.signal(signal.SIGCONT)
        self.until(
            lambda: not replica.kube_scheduler.alive or self.leader() is replica,
            f"{replica.host}'s kube-scheduler has noticed",
        )
        self._down.remove(replica)

    def revive_all(self) -> None:
        for replica in tuple(self._down):
            self.revive(replica)

    def reset(self) -> None:
        for replica in self.replicas:
            replica.hami.proxy.reset()


@dataclasses.dataclass(frozen=True, slots=True)
class Blow:
    """Who was struck when, where its log ended then, and how many Bindings the other replica had sent."""

    replica: Replica
    at_s: float
    log_end: int
    bindings_of_other: int


class Strike:
    """Something that is done to whichever replica leads when it makes a certain write; then the write goes on."""

    def __init__(self, pair: Pair, action: Callable[[Replica], None], *, hold: bool, **fault: Any) -> None:
        """`hold`: the write goes on at `let_go` only. `fault`: which write, by the fields of `Fault`."""
        self._pair = pair
        self._action = action
        self._hold = hold
        self._lock = threading.Lock()
        self._gates = [threading.Event() for _ in pair.replicas]
        self._struck: list[Blow] = []
        for replica, gate in zip(pair.replicas, self._gates, strict=True):
            strike = functools.partial(self._strike, replica, gate)
            replica.hami.proxy.add(Fault(callback=strike, hold=gate, **fault))

    def _strike(self, replica: Replica, gate: threading.Event) -> None:
        with self._lock:
            first = not self._struck
            if first:
                log_end = replica.hami.process.mark()
                bindings = self._pair.other(replica).bindings()
                self._pair.take_down(replica, functools.partial(self._action, replica))
                self._struck.append(Blow(replica, time.monotonic(), log_end, bindings))
        if not first or not self._hold:
            gate.set()

    def wait(self) -> Blow:
        """Who was struck, and how things were then."""
        self._pair.until(lambda: self._struck, "the leader makes that write")
        return self._struck[0]

    def let_go(self) -> None:
        """Nothing is held any more."""
        for gate in self._gates:
            gate.set()


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
            plane.wait_http(second, f"https://127.0.0.1:{health}/healthz", PATIENCE_S)
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


def kill_kube_scheduler(replica: Replica) -> None:
    replica.kube_scheduler.kill()


def hang(replica: Replica) -> None:
    replica.signal(signal.SIGSTOP)


LOSSES = {"kube-scheduler killed": kill_kube_scheduler, "both hang, and go on later": hang}


@pytest.mark.parametrize("how", LOSSES)
def test_lease_lost_in_the_middle_of_200_pods(pair: Pair, workspace: Workspace, how: str) -> None:
    """The lease is lost with the 40th Binding on its way."""
    pair.reset()
    strike = Strike(pair, LOSSES[how], hold=False, method="POST", path=r"/binding$", every=40)
    started = time.monotonic()
    workspace.add_all(small_pods(MANY))
    blow = strike.wait()
    old, lost, before = blow.replica, blow.at_s, blow.bindings_of_other
    new = pair.other(old)
    try:
        pair.until(lambda: new.bindings() > before, "the other replica binds", interval_s=0.01)
        results.note(TABLE, f"handover pause, {how}", f"{time.monotonic() - lost:5.1f} s")
        pair.until(lambda: new.bindings() >= before + 20, "the other one is at work")
    finally:
        pair.revive_all()
    pair.until(lambda: running_in(workspace) == MANY, "all run")
    results.note(TABLE, f"200 pods run, {how}", f"{time.monotonic() - started:5.1f} s")
    assert_clean(pair, workspace.pods(), MANY)


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
    body = TOKEN if method == "PATCH" else ""
    strike = Strike(pair, hang, hold=True, when=when, method=method, path=path, body=body)
    node = {"kubernetes.io/hostname": "node-01"}
    started = time.monotonic()
    try:
        workspace.add(pod("first", HALF_A_CARD, nodeSelector=node))
        blow = strike.wait()
        old = blow.replica
        pair.until(lambda: pair.leader() is pair.other(old), "the other one leads")
        pods = [pod(f"p{index:02d}", HALF_A_CARD, nodeSelector=node) for index in range(16)]
        workspace.add_all(pods)
        pair.until(lambda: running_in(workspace) >= 15, "the other one fills the node")
    finally:
        strike.let_go()
        pair.revive_all()
    pair.until(lambda: running_in(workspace) == 16, "all that fit run")
    results.note(TABLE, f"stopped, {method} {when} it took effect", f"{time.monotonic() - started:5.1f} s")
    pair.until(lambda: any(words in old.hami.process.said(blow.log_end) for words in FOLLOWING), "it follows")
    assert_clean(pair, workspace.pods(), 16)


def running_in(space: Workspace) -> int:
    return sum(pod["status"]["phase"] == "Running" for pod in space.tended())
