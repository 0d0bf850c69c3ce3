"""One fault at a time while pods arrive: all that can run, no card holds too much, and how long it took.

Faults strike at a proxy between our process and kube-apiserver, at the process itself, or at the device plugin. Each
row waits until everything runs that can, while the fault lasts; the times are printed at the end of the run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import results
from tests.cluster.api import ApiError, Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy import Fault
from tests.tools.watch_faults import WatchFaults, doubled, reordered

TABLE = "Time until every pod runs (control plane, 4 nodes of 8 cards)"
NODES, PODS = 4, 16
ALWAYS = 10**9
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")
SHIM_SOURCE = Path(__file__).parent.parent / "tools" / "clock_skew.c"

Harm = Callable[[Cluster], AbstractContextManager[object]]


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("faults"), max_backoff_s=1)
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x8"] * NODES)
        yield cluster


def pods_of(count: int) -> list[Object]:
    """Half cards, binpack and spread in turn, so that nodes are both shared and changed; every fourth on the node whose
    plugin some rows harm, so that the harm is met."""
    made = []
    for index in range(count):
        policy = {"hami.io/node-scheduler-policy": "spread" if index % 2 else "binpack"}
        place: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "node-00"}} if index % 4 == 3 else {}
        made.append(gpu_pod(f"p{index:03d}", HALF_A_CARD, annotations=policy, **place))
    return made


def assert_within_limits(cluster: Cluster, pods: list[Object]) -> None:
    """The audit is clean and each container got what its pod's annotation says."""
    report = audit_cluster(cluster.plane.admin_kubeconfig)
    assert report.faults == []
    assert sum(len(held) for held in report.holders.values()) == len(pods)
    wrong = [pod["metadata"]["name"] for pod in pods if cluster.given_limits(pod) != cluster.granted_limits(pod)]
    assert wrong == []


# What goes wrong


@contextlib.contextmanager
def nothing(cluster: Cluster) -> Iterator[None]:
    yield


def answers(**fault: object) -> Harm:
    """The proxy does this to matching requests as long as the row lasts; it must strike."""

    @contextlib.contextmanager
    def harm(cluster: Cluster) -> Iterator[None]:
        armed = cluster.scheduler.proxy.add(Fault(times=ALWAYS, **fault))  # type: ignore[arg-type]  # from a table
        yield
        assert armed.struck, "a fault that never struck shows nothing"

    return harm


@contextlib.contextmanager
def both(first: Harm, second: Harm, cluster: Cluster) -> Iterator[None]:
    with first(cluster), second(cluster):
        yield


@contextlib.contextmanager
def away_for_30_s(cluster: Cluster) -> Iterator[None]:
    """Pods arrive while the scheduler does not reach the API server, and some were on their way before."""
    proxy = cluster.scheduler.proxy
    begin, end = threading.Timer(0.5, proxy.go_away), threading.Timer(30.5, proxy.reset)
    begin.start()
    end.start()
    yield
    assert not end.is_alive(), "everything ran before the API server came back"
    begin.join()


def watches(faults: WatchFaults) -> Harm:
    """Watches opened from now on are harmed."""

    @contextlib.contextmanager
    def harm(cluster: Cluster) -> Iterator[None]:
        cluster.scheduler.proxy.harm_watches(faults)
        assert cluster.scheduler.proxy.cut_watches() >= 2
        yield

    return harm


@contextlib.contextmanager
def repeatedly(action: Callable[[], object], pause_s: float) -> Iterator[list[int]]:
    """Run `action` on a thread of its own, again and again; counts how often."""
    ended = threading.Event()
    count = [0]

    def work() -> None:
        while not ended.wait(pause_s):
            action()
            count[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield count
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def watches_cut(cluster: Cluster) -> Iterator[None]:
    with repeatedly(cluster.scheduler.proxy.cut_watches, 0.3) as count:
        yield
    assert count[0] >= 3


@contextlib.contextmanager
def others_write(cluster: Cluster) -> Iterator[None]:
    """Somebody writes to every node and every waiting pod all the time: real conflicts."""
    number = itertools.count()

    def write() -> None:
        note: dict[str, str | None] = {"example.com/note": str(next(number))}
        for name in cluster.nodes:
            cluster.api.annotate(f"/api/v1/nodes/{name}", note)
        for pod in cluster.api.items("/api/v1/pods", fieldSelector="spec.nodeName="):
            with contextlib.suppress(ApiError):
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                cluster.api.annotate(path, note)

    with repeatedly(write, 0.01):
        yield
    conflicts = [write for write in cluster.scheduler.proxy.writes if write.status == 409]
    assert conflicts, "nobody met a conflict"


@contextlib.contextmanager
def plugin_is_late(cluster: Cluster) -> Iterator[None]:
    """Each write of one node's plugin takes two seconds longer."""
    node = next(iter(cluster.nodes.values()))
    with through_proxy(cluster, node.name, Fault(method="PATCH", delay_s=2, times=ALWAYS)):
        yield


@contextlib.contextmanager
def through_proxy(cluster: Cluster, name: str, fault: Fault) -> Iterator[None]:
    node, proxy = cluster.nodes[name], cluster.plugin_proxy()
    plain = node.plugin
    proxy.start()
    plain.kill()
    # Else the node may be taken for ready because nobody has seen yet that it is not.
    wait_until(lambda: not cluster.node_is_ready(name), 30, "kubelet has seen the plugin go")
    node.plugin = cluster.plugin_process(node, cluster.plugin_kubeconfig(proxy))
    node.plugin.start()
    cluster.wait_node(node)
    proxy.add(fault)
    try:
        yield
        assert fault.struck
    finally:
        node.plugin.kill()
        wait_until(lambda: not cluster.node_is_ready(name), 30, "kubelet has seen the plugin go")
        proxy.stop()
        node.plugin = plain
        plain.start()
        cluster.wait_node(node)


@contextlib.contextmanager
def plugin_stopped_for_20_s(cluster: Cluster) -> Iterator[None]:
    """One node's plugin answers nothing, then everything late."""
    plugin = next(iter(cluster.nodes.values())).plugin
    plugin.signal(signal.SIGSTOP)
    timer = threading.Timer(20, plugin.signal, [signal.SIGCONT])
    timer.start()
    yield
    timer.join()


@functools.cache
def clock_shim(folder: Path) -> Path:
    """The library that moves a process's clock."""
    made = folder / "clock_skew.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(SHIM_SOURCE)], check=True)
    return made


def clocks(scheduler_s: int, plugin_s: int) -> Harm:
    """The scheduler's clock, and that of every plugin, are wrong by so much."""

    @contextlib.contextmanager
    def harm(cluster: Cluster) -> Iterator[None]:
        skewed(cluster, scheduler_s, plugin_s)
        try:
            yield
            report = cluster.log_tail(200)
            assert "DifferenceFound" not in report
        finally:
            skewed(cluster, 0, 0)

    return harm


def skewed(cluster: Cluster, scheduler_s: int, plugin_s: int) -> None:
    library = clock_shim(cluster.plane.folder)
    plugins = [node.plugin for node in cluster.nodes.values()]
    for process, skew_s in [(cluster.scheduler.process, scheduler_s), *((each, plugin_s) for each in plugins)]:
        if (process.env or {}).get("CLOCK_SKEW_S", "0") != str(skew_s):
            process.env = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_SKEW_S": str(skew_s)} if skew_s else None
            process.restart()
    cluster.scheduler.wait_ready()
    for node in cluster.nodes.values():
        cluster.wait_node(node)


# The table


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One fault: `pods` arrive while it lasts."""

    what: str
    harm: Harm
    pods: int = PODS
    within_s: float = 60
    soak: bool = False


SLOW = answers(delay_s=2.0)
TOKENS, BINDINGS, EVENTS = r"/nodes/[^/]+$", r"/binding$", r"/events$"
ROWS = [
    Row("no fault", nothing),
    Row("API server away for 30 s", away_for_30_s, within_s=90),
    Row("API server takes 2 s a call", SLOW, pods=8, within_s=90),
    Row("every second write answered 429 with Retry-After", answers(status=429, every=2, method="PATCH|POST")),
    Row("every second token answered 409", answers(status=409, every=2, method="PATCH", path=TOKENS)),
    Row("every second binding answered 409", answers(status=409, every=2, method="POST", path=BINDINGS)),
    Row("others write nodes and pods all the time", others_write),
    Row("every third binding's answer lost", answers(when="after", lose=True, every=3, path=BINDINGS)),
    Row("every third token's answer lost", answers(when="after", lose=True, every=3, path=TOKENS)),
    Row("every third write answered 500", answers(status=500, every=3, method="PATCH|POST"), soak=True),
    Row("watches cut every 0.3 s", watches_cut),
    Row("watches 3 s late", watches(WatchFaults(delay_s=3.0)), pods=12),
    Row("watches doubled", watches(WatchFaults(shuffle=doubled, gather_s=0.3))),
    Row("watches reordered", watches(WatchFaults(shuffle=reordered, gather_s=0.3))),
    Row(
        "watches late and reordered, bindings lost",
        functools.partial(
            both,
            watches(WatchFaults(1.0, reordered, 0.5)),
            answers(when="after", lose=True, every=3, path=BINDINGS),
        ),
        soak=True,
    ),
    Row("a plugin's writes 2 s late", plugin_is_late, pods=12),
    Row("a plugin silent for 20 s", plugin_stopped_for_20_s),
    Row("scheduler's clock 10 min ahead", clocks(600, 0), soak=True),
    Row("scheduler's clock 10 min behind, plugins' ahead", clocks(-600, 600)),
    Row("scheduler's clock 10 min ahead, plugins' behind", clocks(600, -600)),
    Row("plugins' clocks 10 min ahead", clocks(0, 600), soak=True),
]


@pytest.mark.parametrize("row", [pytest.param(row, id=row.what) for row in ROWS if SOAK or not row.soak])
def test_all_run_within_limits(cluster: Cluster, workspace: Workspace, row: Row) -> None:
    cluster.scheduler.proxy.reset()
    try:
        with row.harm(cluster), results.timed(TABLE, row.what):
            cluster.api.post_all(f"{workspace.path}/pods", pods_of(row.pods))
            pods = workspace.wait_all_running(row.pods, row.within_s)
        assert_within_limits(cluster, pods)
    finally:
        cluster.scheduler.proxy.reset()


def test_forty_pods_of_one_job_on_one_node(cluster: Cluster, workspace: Workspace) -> None:
    """B64, B65: no bind fails, about a pod a second and more."""
    cluster.scheduler.proxy.reset()
    job = [
        gpu_pod(f"job-{index:02d}", {"gpu": 1, "gpumem": 4000}, nodeSelector={"kubernetes.io/hostname": "node-01"})
        for index in range(40)
    ]
    with results.timed(TABLE, "40 pods of one Job on one node"):
        cluster.api.post_all(f"{workspace.path}/pods", job)
        pods = workspace.wait_all_running(40, 40)
    assert_within_limits(cluster, pods)
    failed = [event for pod in pods for event in workspace.events(pod["metadata"]["name"]) if "ailed" in event.reason]
    assert failed == []
