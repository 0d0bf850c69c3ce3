"""Leadership with the real kube-scheduler's Lease: who holds it answers, and a lease that ends ends it."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster.components import Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.election import LEASE, kept_up, let_hami_follow, with_election
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    config = plane.folder / "kube-scheduler.yaml"
    config.write_text(with_election(config))
    with running(Cluster(plane, ["--leader-elect=true"])) as cluster:
        let_hami_follow(cluster.api)
        cluster.add_nodes(["a100x4"])
        yield cluster


def until(cluster: Cluster, probe: Callable[[], bool], what: str) -> None:
    wait_until(kept_up(cluster.plane.hami_kube_scheduler, probe), PATIENCE_S, what)


def runs(space: Workspace, name: str) -> bool:
    space.tended()
    return bool(space.pod(name)["status"]["phase"] == "Running")


def filtered(cluster: Cluster) -> str:
    """What the extender says to a filter call."""
    context = ssl.create_default_context(cafile=str(cluster.scheduler.certificates / "ca.crt"))
    pod = gpu_pod("asked", {"gpu": 1, "gpumem": 100})
    pod["metadata"] |= {"namespace": "default", "uid": "asked"}
    body: dict[str, Any] = {"Pod": pod, "NodeNames": ["nowhere"]}
    request = urllib.request.Request(
        f"{cluster.plane.extender_url}/filter", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S, context=context) as answer:
        return str(json.load(answer)["Error"])


def test_the_host_of_the_real_holder_leads(cluster: Cluster, workspace: Workspace) -> None:
    workspace.add(gpu_pod("p", {"gpu": 1, "gpumem": 1000}))
    until(cluster, lambda: runs(workspace, "p"), "p runs")
    holder = cluster.api.get(LEASE)["spec"]["holderIdentity"]
    assert holder.rpartition("_")[0] == socket.gethostname()
    until(cluster, lambda: filtered(cluster) == "", "the extender leads")


def test_a_lease_that_ends_ends_leadership_and_a_new_holder_brings_it_back(
    cluster: Cluster, workspace: Workspace
) -> None:
    cluster.plane.hami_kube_scheduler.kill()
    wait_until(lambda: "has expired" in filtered(cluster), PATIENCE_S, "the extender refuses")
    workspace.add(gpu_pod("p", {"gpu": 1, "gpumem": 1000}))
    until(cluster, lambda: runs(workspace, "p"), "p runs")
    until(cluster, lambda: filtered(cluster) == "", "the extender leads again")
    assert audit_cluster(cluster.plane.admin_kubeconfig).faults == []
