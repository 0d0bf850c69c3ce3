"""The device plugin killed before and after each of its API writes, with pods arriving all the while.

A kubelet that loses its plugin in the middle of an Allocate fails the pod (UnexpectedAdmissionError); a controller
makes a new one. So does this test: in the end all run, no card is exceeded, and no container has limits that its
annotation does not say.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cluster import results
from tests.cluster.api import Object
from tests.cluster.components import Cluster, GpuNode
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import Limits, Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster
from tests.tools.proxy import FaultProxy
from tests.tools.proxy_faults import Fault, When

WANTED = 16  # two shares each, of the 40 that four cards offer
STRUCK_S = 300
LIMITS: tuple[Limits, ...] = ({"gpu": 1, "gpumem": 3000, "gpucores": 5}, {}, {"gpu": 1, "gpumem": 2000})


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x4"])
        yield cluster


@pytest.fixture
def proxied(cluster: Cluster) -> Iterator[tuple[GpuNode, FaultProxy]]:
    """The node whose plugin goes through a fault proxy."""
    (node,) = cluster.nodes.values()
    proxy = cluster.plugin_proxy()
    proxy.start()
    cluster.end_plugin(node)
    node.plugin = cluster.plugin_process(node, cluster.plugin_kubeconfig(proxy))
    node.plugin.start()
    cluster.wait_node(node)
    yield node, proxy
    node.plugin.kill()
    proxy.stop()


class Controller:
    """Keeps `WANTED` pods alive as a ReplicaSet would: a failed one is replaced by one of another name."""

    def __init__(self, space: Workspace) -> None:
        self._space = space
        self._numbers = itertools.count()
        self.failures: Counter[str] = Counter()
        """Why pods failed, as kubelet says; nothing but kubelet can fail one here."""

    def fill(self) -> list[Object]:
        """Replace what failed or is missing; returns the pods that have not failed."""
        pods = self._space.pods()
        for pod in pods:
            if pod["status"]["phase"] == "Failed":
                self.failures[pod["status"].get("reason", "a container ended")] += 1
                self._space.remove(pod["metadata"]["name"])
        alive = [pod for pod in pods if pod["status"]["phase"] != "Failed"]
        for _ in range(WANTED - len(alive)):
            self._space.add(gpu_pod(f"p{next(self._numbers):03d}", *LIMITS))
        return alive

    def tend(self) -> bool:
        """Fill up; True when all that are wanted run, AssertionError with the first that does not."""
        alive = self.fill()
        waiting = [pod["metadata"]["name"] for pod in alive if pod["status"]["phase"] != "Running"]
        assert not waiting, f"not running: {waiting}, first {self._space.events(waiting[0])}"
        return len(alive) == WANTED

    def renew(self) -> None:
        """Replace two pods, so that the plugin has something to write."""
        for pod in self._space.pods()[:2]:
            self._space.remove(pod["metadata"]["name"])
        self.fill()


def struck(controller: Controller, node: GpuNode) -> bool:
    """Keep the pods coming until the plugin is dead."""
    alive = controller.fill()
    if len(alive) == WANTED and all(pod["status"]["phase"] == "Running" for pod in alive):
        controller.renew()
    return not node.plugin.alive


def test_killed_before_and_after_each_write(
    cluster: Cluster, workspace: Workspace, proxied: tuple[GpuNode, FaultProxy]
) -> None:
    node, proxy = proxied
    controller = Controller(workspace)
    controller.fill()
    moments: tuple[When, When] = ("before", "after")
    kinds = [("PATCH", r"/pods/[^/]+$"), ("PATCH", r"/nodes/[^/]+$")]
    numbered = [Fault(when=when, number=number) for number in (1, 2, 3, 4) for when in moments]
    by_kind = [Fault(when=when, method=method, path=path) for method, path in kinds for when in moments]
    for fault in [*by_kind, *numbered]:
        proxy.reset()
        fault.callback = node.plugin.kill
        proxy.add(fault)
        controller.renew()
        wait_until(functools.partial(struck, controller, node), STRUCK_S, f"{fault} struck")
        assert fault.struck, f"it died by itself: {node.plugin.tail()}"
        proxy.reset()
        node.plugin.start()
        cluster.wait_node(node)
    wait_until(controller.tend, STRUCK_S, f"{WANTED} pods running", interval_s=0.3)
    failed = ", ".join(f"{reason}: {count}" for reason, count in sorted(controller.failures.items()))
    results.note("Device plugin killed at each of its writes", "pods that kubelet failed, all replaced", failed)
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []
    for pod in workspace.pods():
        assert cluster.given_limits(pod) == cluster.granted_limits(pod)


def test_no_token_is_left_behind(cluster: Cluster, workspace: Workspace, proxied: tuple[GpuNode, FaultProxy]) -> None:
    node, _ = proxied
    workspace.add(gpu_pod("p", *LIMITS))
    workspace.wait_phase("p")

    def free() -> bool:
        annotations = cluster.api.get(f"/api/v1/nodes/{node.name}")["metadata"]["annotations"]
        return "hami.io/mutex.lock" not in annotations

    wait_until(free, PATIENCE_S, "the node's token released")
