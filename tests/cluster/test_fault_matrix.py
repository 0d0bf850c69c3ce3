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
import re
import signal
import subprocess
import threading
import time
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
from tests.cluster.processes import PATIENCE_S, Process, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy_faults import Fault
from tests.tools.watch_faults import WatchFaults, doubled, reordered

TABLE = "Time until every pod runs (control plane, 4 nodes of 8 cards)"
NODES, PODS = 4, 16
ALWAYS = 10**9
TOKENS, BINDINGS = r"/nodes/[^/]+$", r"/binding$"
WATCHED = {"/api/v1/pods", "/api/v1/nodes"}
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")
MEETING_S = 600
"""For all pods of a row to run, and for its harm to be met."""
SHIM_SOURCE = Path(__file__).parent.parent / "tools" / "clock_skew.c"

Met = Callable[[], bool]
"""Whether the harm has struck: one that never did shows nothing, so pods keep coming until it has."""
Harm = Callable[[Cluster], AbstractContextManager[Met]]


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Binds may wait long: on a busy machine 40 on one node take a while, and none of them may fail.
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("faults"), max_backoff_s=1, bind_timeout_s=300)
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
def nothing(cluster: Cluster) -> Iterator[Met]:
    yield lambda: True


def answers(**fault: object) -> Harm:
    """The proxy does this to matching requests as long as the row lasts."""

    @contextlib.contextmanager
    def harm(cluster: Cluster) -> Iterator[Met]:
        armed = cluster.scheduler.proxy.add(Fault(times=ALWAYS, **fault))  # type: ignore[arg-type]  # from a table
        yield lambda: armed.struck > 0

    return harm


@contextlib.contextmanager
def both(first: Harm, second: Harm, cluster: Cluster) -> Iterator[Met]:
    with first(cluster) as met, second(cluster) as also_met:
        yield lambda: met() and also_met()


@contextlib.contextmanager
def away_for_30_s(cluster: Cluster) -> Iterator[Met]:
    """The API server vanishes with a Binding on its way; other pods are bound, reserved, or not yet looked at."""
    proxy = cluster.scheduler.proxy
    end = threading.Timer(30, proxy.reset)
    begun = threading.Event()

    def begin() -> None:
        proxy.go_away()
        end.start()
        begun.set()

    proxy.add(Fault(path=BINDINGS, every=3, callback=begin))
    try:
        yield begun.is_set
    finally:
        end.cancel()
        if end.is_alive():
            end.join()


def watches(faults: WatchFaults) -> Harm:
    """Watches opened from now on are harmed, and all that were open are opened anew."""

    @contextlib.contextmanager
    def harm(cluster: Cluster) -> Iterator[Met]:
        proxy = cluster.scheduler.proxy

        def harmed() -> bool:
            open_now = proxy.open_watches
            assert {watch.path for watch in open_now if watch.faults == faults} >= WATCHED, open_now
            return True

        proxy.harm_watches(faults)
        proxy.cut_watches()
        wait_until(harmed, PATIENCE_S, "pods and nodes are watched through the harm")
        try:
            yield lambda: True
        finally:
            proxy.harm_watches(WatchFaults())
            proxy.cut_watches()

    return harm


@contextlib.contextmanager
def repeatedly(action: Callable[[], bool], pause_s: float) -> Iterator[Callable[[], int]]:
    """Run `action` on a thread of its own, again and again; gives how often it said that it did something."""
    ended = threading.Event()
    done = [0]

    def work() -> None:
        while not ended.wait(pause_s):
            done[0] += action()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: done[0]
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def watches_cut(cluster: Cluster) -> Iterator[Met]:
    with repeatedly(lambda: cluster.scheduler.proxy.cut_watches() > 0, 0.3) as cuts:
        yield lambda: cuts() >= 3


@contextlib.contextmanager
def others_write(cluster: Cluster) -> Iterator[Met]:
    """Somebody writes to the node and to the pod just before every second write of ours: real conflicts."""
    proxy, number, go_on = cluster.scheduler.proxy, itertools.count(), threading.Event()
    go_on.set()

    def note() -> dict[str, str | None]:
        return {"example.com/note": str(next(number))}

    def write_nodes() -> None:
        for name in cluster.nodes:
            cluster.api.annotate(f"/api/v1/nodes/{name}", note())

    def write_pods() -> None:
        for pod in cluster.api.items("/api/v1/pods", fieldSelector="spec.nodeName="):
            with contextlib.suppress(ApiError):
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                cluster.api.annotate(path, note())

    proxy.add(Fault(method="PATCH", path=TOKENS, every=2, times=ALWAYS, callback=write_nodes, hold=go_on))
    proxy.add(Fault(method="POST", path=BINDINGS, every=2, times=ALWAYS, callback=write_pods, hold=go_on))

    def met() -> bool:
        conflicts = [write.path for write in proxy.writes if write.status == 409]
        return all(any(re.search(kind, path) for path in conflicts) for kind in (TOKENS, BINDINGS))

    yield met


@contextlib.contextmanager
def plugin_is_late(cluster: Cluster) -> Iterator[Met]:
    """Each write of one node's plugin takes two seconds longer."""
    node = next(iter(cluster.nodes.values()))
    with through_proxy(cluster, node.name, Fault(method="PATCH", delay_s=2, times=ALWAYS)) as met:
        yield met


@contextlib.contextmanager
def through_proxy(cluster: Cluster, name: str, fault: Fault) -> Iterator[Met]:
    node, proxy = cluster.nodes[name], cluster.plugin_proxy()
    plain = node.plugin
    proxy.start()
    cluster.end_plugin(node)
    node.plugin = cluster.plugin_process(node, cluster.plugin_kubeconfig(proxy))
    node.plugin.start()
    cluster.wait_node(node)
    proxy.add(fault)
    try:
        yield lambda: fault.struck > 0
    finally:
        cluster.end_plugin(node)
        proxy.stop()
        node.plugin = plain
        plain.start()
        cluster.wait_node(node)


@contextlib.contextmanager
def plugin_stopped_for_20_s(cluster: Cluster) -> Iterator[Met]:
    """One node's plugin answers nothing, then everything late; until then the pods for that node cannot run."""
    plugin = next(iter(cluster.nodes.values())).plugin
    plugin.signal(signal.SIGSTOP)
    timer = threading.Timer(20, plugin.signal, [signal.SIGCONT])
    timer.start()
    try:
        yield lambda: not timer.is_alive()
    finally:
        timer.cancel()
        timer.join()
        plugin.signal(signal.SIGCONT)


@functools.cache
def clock_shim(folder: Path) -> Path:
    """The library that moves a process's clock."""
    made = folder / "clock_skew.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(made), str(SHIM_SOURCE)], check=True)
    return made


def clocks(scheduler_s: int, plugin_s: int) -> Harm:
    """The scheduler's clock, and that of every plugin, are wrong by so much."""

    @contextlib.contextmanager
    def harm(cluster: Cluster) -> Iterator[Met]:
        began = cluster.scheduler.process.mark()
        try:
            skewed(cluster, scheduler_s, plugin_s)
            yield lambda: True
            assert "audit difference" not in cluster.scheduler.process.said(began)
        finally:
            skewed(cluster, 0, 0)

    return harm


def skewed(cluster: Cluster, scheduler_s: int, plugin_s: int) -> None:
    if set_clock(cluster, cluster.scheduler.process, scheduler_s):
        cluster.scheduler.process.restart()
        cluster.scheduler.wait_ready()
    changed = [node for node in cluster.nodes.values() if set_clock(cluster, node.plugin, plugin_s)]
    for node in changed:
        cluster.end_plugin(node)
    for node in changed:
        node.plugin.start()
    for node in changed:
        cluster.wait_node(node)


def set_clock(cluster: Cluster, process: Process, skew_s: int) -> bool:
    """Whether the process has to be started anew to have this clock."""
    if (process.env or {}).get("CLOCK_SKEW_S", "0") == str(skew_s):
        return False
    library = clock_shim(cluster.plane.folder)
    process.env = {**os.environ, "LD_PRELOAD": str(library), "CLOCK_SKEW_S": str(skew_s)} if skew_s else None
    return True


# The table


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One fault: `pods` arrive while it lasts."""

    what: str
    harm: Harm
    pods: int = PODS
    soak: bool = False


SLOW = answers(delay_s=2.0)
ROWS = [
    Row("no fault", nothing),
    Row("API server away for 30 s", away_for_30_s),
    Row("API server takes 2 s a call", SLOW, pods=4),
    Row("every second write answered 429 with Retry-After", answers(status=429, every=2, method="PATCH|POST"), pods=8),
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
    Row("a plugin's writes 2 s late", plugin_is_late, pods=4),
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
        with row.harm(cluster) as met:
            pods = run_until(met, cluster, workspace, row)
        assert_within_limits(cluster, pods)
    finally:
        cluster.scheduler.proxy.reset()


def run_until(met: Met, cluster: Cluster, workspace: Workspace, row: Row) -> list[Object]:
    """The row's pods run, as often as it takes for the harm to be met; those of the last time."""
    deadline = time.monotonic() + MEETING_S
    while True:
        started = time.monotonic()
        workspace.add_all(pods_of(row.pods))
        pods = workspace.wait_all_running(row.pods, MEETING_S)
        if met():
            results.note(TABLE, row.what, f"{time.monotonic() - started:5.1f} s")
            return pods
        assert time.monotonic() < deadline, "a fault that never struck shows nothing"
        workspace.remove_all()


def test_forty_pods_of_one_job_on_one_node(cluster: Cluster, workspace: Workspace) -> None:
    """B64, B65: no bind fails."""
    cluster.scheduler.proxy.reset()
    # Who was restarted for the row before is known to both schedulers, or a pod may be refused at first.
    workspace.add(gpu_pod("probe", {"gpu": 1, "gpumem": 1}, nodeSelector={"kubernetes.io/hostname": "node-01"}))
    workspace.wait_phase("probe")
    workspace.remove("probe")
    job = [
        gpu_pod(f"job-{index:02d}", {"gpu": 1, "gpumem": 4000}, nodeSelector={"kubernetes.io/hostname": "node-01"})
        for index in range(40)
    ]
    with results.timed(TABLE, "40 pods of one Job on one node"):
        workspace.add_all(job)
        pods = workspace.wait_all_running(40, MEETING_S)
    assert_within_limits(cluster, pods)
    names = {pod["metadata"]["name"] for pod in pods}

    def told() -> list[Object]:
        events = cluster.api.items(f"{workspace.path}/events")
        bound = {event["involvedObject"]["name"] for event in events if event["reason"] == "BindingSucceed"}
        assert bound >= names, names - bound  # a pod's events come in their order: nothing is still to be said
        return events

    events = wait_until(told, PATIENCE_S, "every pod's events are written")
    assert [event for event in events if "ailed" in event["reason"]] == []
