"""Harms that are done to a running cluster while pods arrive, each until it has been met."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from tests.cluster.api import ApiError
from tests.cluster.components import Cluster
from tests.cluster.processes import PATIENCE_S, Process, wait_until
from tests.tools.proxy_faults import Fault
from tests.tools.watch_faults import WatchFaults

NODES, PODS = 4, 16
ALWAYS = 10**9
TOKENS, BINDINGS = r"/nodes/[^/]+$", r"/binding$"
WATCHED = {"/api/v1/pods", "/api/v1/nodes"}
MEETING_S = 600
"""For all pods of a row to run, and for its harm to be met."""
SHIM_SOURCE = Path(__file__).parent.parent / "tools" / "clock_skew.c"
Met = Callable[[], bool]
"""Whether the harm has struck: one that never did shows nothing, so pods keep coming until it has."""
Harm = Callable[[Cluster], AbstractContextManager[Met]]


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
