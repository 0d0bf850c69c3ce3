"""One fault at a time while pods arrive: all that can run, no card holds too much, and how long it took.

Faults strike at a proxy between our process and kube-apiserver, at the process itself, or at the device plugin. Each
row waits until everything runs that can, while the fault lasts; the times are printed at the end of the run.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import results
from tests.cluster.api import Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.harms import (
    BINDINGS,
    MEETING_S,
    NODES,
    PODS,
    TOKENS,
    Harm,
    Met,
    answers,
    away_for_30_s,
    both,
    clocks,
    nothing,
    others_write,
    plugin_is_late,
    plugin_stopped_for_20_s,
    watches,
    watches_cut,
)
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.watch_faults import WatchFaults, doubled, reordered

TABLE = "Time until every pod runs (control plane, 4 nodes of 8 cards)"
HALF_A_CARD = {"gpu": 1, "gpumem-percentage": 45, "gpucores": 45}
SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Binds may wait long: on a busy machine 40 on one node take a while, and none of them may fail.
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("faults"), max_backoff_s=1, bind_timeout_s=300)
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x8"] * NODES)
        yield cluster


def assert_within_limits(cluster: Cluster, pods: list[Object]) -> None:
    """The audit is clean and each container got what its pod's annotation says."""
    report = audit_cluster(cluster.plane.admin_kubeconfig)
    assert report.faults == []
    assert sum(len(held) for held in report.holders.values()) == len(pods)
    wrong = [pod["metadata"]["name"] for pod in pods if cluster.given_limits(pod) != cluster.granted_limits(pod)]
    assert wrong == []


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


def pods_of(count: int) -> list[Object]:
    """Half cards, binpack and spread in turn, so that nodes are both shared and changed; every fourth on the node whose
    plugin some rows harm, so that the harm is met."""
    made = []
    for index in range(count):
        policy = {"hami.io/node-scheduler-policy": "spread" if index % 2 else "binpack"}
        place: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": "node-00"}} if index % 4 == 3 else {}
        made.append(gpu_pod(f"p{index:03d}", HALF_A_CARD, annotations=policy, **place))
    return made
