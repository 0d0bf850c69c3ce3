"""Sentences of issue 6 that other files of this layer do not meet: kube-apiserver itself killed under load, and a
device plugin that does not answer, or answers late."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster import results
from tests.cluster.api import Object
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster, GpuNode
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import BIND_PHASE, NODE_LOCK, Workspace, annotation, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy_faults import Fault

TABLE = "Faults of the hand-off (control plane, 2 nodes of 8 cards)"
FIFTH = {"gpu": 1, "gpumem-percentage": 20, "gpucores": 20}
PODS = 40
KILLED_AT = 12
"""kube-apiserver dies with this Binding on its way: some pods run by then, others wait for a token or a look."""


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # A bind waits for its node's token five seconds less than kube-scheduler waits for the bind: here 10 s.
    plane = ControlPlane(binaries, tmp_path_factory.mktemp("sentences"), max_backoff_s=1, bind_timeout_s=15)
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x8", "a100x8"])
        yield cluster


def assert_as_told(cluster: Cluster, workspace: Workspace, count: int) -> None:
    """The audit is clean, every container got what its pod's annotation says, and no token stays."""
    pods = workspace.wait_all_running(count)
    report = audit_cluster(cluster.plane.admin_kubeconfig)
    assert report.faults == []
    assert sum(len(held) for held in report.holders.values()) == count
    wrong = [pod["metadata"]["name"] for pod in pods if cluster.given_limits(pod) != cluster.granted_limits(pod)]
    assert wrong == []
    for name in cluster.nodes:
        wait_until(lambda name=name: not token(cluster, name), PATIENCE_S, f"no token on {name}")  # type: ignore[misc]


def token(cluster: Cluster, node: str) -> str:
    return annotation(cluster.api.get(f"/api/v1/nodes/{node}"), NODE_LOCK)


def revive(cluster: Cluster) -> None:
    """What kubelet does for the pods of a control plane: whatever ended is started again."""
    for process in cluster.plane.processes():
        if not process.alive:
            process.start()


def test_kube_apiserver_killed_in_the_middle_of_forty_pods(cluster: Cluster, workspace: Workspace) -> None:
    """The server itself, with SIGKILL, not the way to it: what it had answered is in etcd, what it had not may be."""
    plane, began_s = cluster.plane, time.monotonic()
    struck = threading.Event()

    def kill() -> None:
        plane.apiserver.kill()
        struck.set()

    fault = cluster.scheduler.proxy.add(Fault(method="POST", path=r"/binding$", every=KILLED_AT, callback=kill))
    first = [gpu_pod(f"p{number:02}", FIFTH) for number in range(PODS // 2)]
    workspace.add_stubbornly(first[:KILLED_AT])
    # The proxy's thread kills; processes are started on this one.
    creating = threading.Thread(target=workspace.add_stubbornly, args=(first[KILLED_AT:],))
    creating.start()
    assert struck.wait(PATIENCE_S), f"{fault.met} Bindings came"
    revive(cluster)
    workspace.add_stubbornly(gpu_pod(f"p{number:02}", FIFTH) for number in range(PODS // 2, PODS))
    creating.join(PATIENCE_S)
    assert not creating.is_alive()

    def all_run() -> bool:
        revive(cluster)
        pods = workspace.tended()
        return len(pods) == PODS and all(pod["status"]["phase"] == "Running" for pod in pods)

    wait_until(all_run, 2 * PATIENCE_S, f"{PODS} pods run", interval_s=0.5)
    results.note(TABLE, "kube-apiserver killed and started anew: 40 pods run", f"{time.monotonic() - began_s:.1f} s")
    assert_as_told(cluster, workspace, PODS)


def on(node: GpuNode) -> dict[str, Any]:
    return {"nodeSelector": {"kubernetes.io/hostname": node.name}}


def waits_for_allocate(pod: Object, node: GpuNode) -> bool:
    return pod["spec"].get("nodeName") == node.name and annotation(pod, BIND_PHASE) == "allocating"


def test_a_plugin_that_does_not_answer_holds_up_its_own_node_only(cluster: Cluster, workspace: Workspace) -> None:
    silent, sound = (cluster.nodes[name] for name in sorted(cluster.nodes))
    silent.plugin.signal(signal.SIGSTOP)
    try:
        workspace.add(gpu_pod("first", FIFTH, **on(silent)))
        wait_until(lambda: waits_for_allocate(workspace.pod("first"), silent), PATIENCE_S, "first is bound")
        workspace.add(gpu_pod("second", FIFTH, **on(silent)))
        workspace.wait_event("second", "BindingFailed", "node lock contention (held by ")
        began_s = time.monotonic()
        for number in range(6):
            binpack = {"hami.io/node-scheduler-policy": "binpack"}
            workspace.add(gpu_pod(f"p{number}", FIFTH, annotations=binpack))
        for number in range(6):
            assert workspace.wait_phase(f"p{number}")["spec"]["nodeName"] == sound.name
        results.note(TABLE, "a plugin is silent: six others run elsewhere", f"{time.monotonic() - began_s:.1f} s")
        assert waits_for_allocate(workspace.pod("first"), silent)
        assert token(cluster, silent.name).endswith(",first")
        assert not workspace.pod("second")["spec"].get("nodeName")
    finally:
        silent.plugin.signal(signal.SIGCONT)
    assert_as_told(cluster, workspace, 8)
