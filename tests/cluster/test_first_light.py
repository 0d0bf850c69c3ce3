"""What a person sees: kubectl apply, wait and describe of pods that ask for shares, on nodes with our device plugin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.components import REGISTER, Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import SCHEDULER_NAME, ControlPlane, KubectlError
from tests.cluster.pods import (
    BIND_PHASE,
    CHOSEN_NODE,
    NODE_LOCK,
    TO_ALLOCATE,
    Workspace,
    allocation,
    annotation,
    gpu_pod,
)
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.audit import audit_cluster

NODES = ["a100x4", "a100x4"]


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(NODES)
        yield cluster


def kubectl_apply(cluster: Cluster, space: Workspace, pod: dict[str, Any]) -> str:
    """`kubectl apply -f -`; what kubectl said."""
    return cluster.kubectl("apply", "-n", space.name, "-f", "-", stdin=json.dumps(pod))


def registered_cards(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    """The node's register annotation, decoded."""
    cards: list[dict[str, Any]] = json.loads(annotation(cluster.api.get(f"/api/v1/nodes/{node}"), REGISTER))
    return cards


def test_apply_wait_describe(cluster: Cluster, workspace: Workspace) -> None:
    assert "pod/share created" in kubectl_apply(cluster, workspace, gpu_pod("share", {"gpumem": 3000, "gpucores": 30}))
    cluster.kubectl("wait", "-n", workspace.name, "--for=condition=Ready", "pod/share", f"--timeout={PATIENCE_S:.0f}s")
    pod = workspace.pod("share")
    node = pod["spec"]["nodeName"]
    for reason in ("FilteringSucceed", "BindingSucceed"):
        workspace.wait_event("share", reason)  # they are written after the Binding
    described = cluster.kubectl("describe", "pod", "share", "-n", workspace.name)
    assert f"find fit node({node})" in described
    assert f"Successfully binding node [{node}] to {workspace.name}/share" in described
    assert SCHEDULER_NAME in described
    assert pod["spec"]["schedulerName"] == SCHEDULER_NAME
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    ((device,),) = allocation(pod)
    assert (device.memory_mib, device.cores) == (3000, 30)
    assert device.uuid in [card["id"] for card in registered_cards(cluster, node)]


def test_hand_off_is_finished_when_the_pod_runs(cluster: Cluster, workspace: Workspace) -> None:
    workspace.add(gpu_pod("p", {"gpu": 1, "gpumem": 1000}, {}))
    workspace.wait_phase("p")

    def finished() -> bool:
        pod = workspace.pod("p")
        node = cluster.api.get(f"/api/v1/nodes/{pod['spec']['nodeName']}")
        assert annotation(pod, BIND_PHASE) == "success"
        assert not annotation(pod, TO_ALLOCATE).strip(";"), "the work list is not erased"
        assert not annotation(node, NODE_LOCK)
        assert annotation(pod, CHOSEN_NODE) == node["metadata"]["name"]
        assert pod["metadata"]["labels"][CHOSEN_NODE] == node["metadata"]["name"]
        return True

    wait_until(finished, PATIENCE_S, "hand-off finished")


def test_containers_get_exactly_what_the_annotation_says(cluster: Cluster, workspace: Workspace) -> None:
    limits = [{"gpu": 1, "gpumem": 3000, "gpucores": 30}, {}, {"gpu": 2, "gpumem-percentage": 25}]
    workspace.add(gpu_pod("p", *limits))
    pod = workspace.wait_phase("p")
    assert [len(segment) for segment in allocation(pod)] == [1, 0, 2]
    assert cluster.given_limits(pod) == cluster.granted_limits(pod)


def test_register_lists_every_card_of_the_profile(cluster: Cluster) -> None:
    for name in cluster.nodes:
        cards = registered_cards(cluster, name)
        shares = cluster.api.get(f"/api/v1/nodes/{name}")["status"]["allocatable"]["nvidia.com/gpu"]
        assert int(shares) == sum(card["count"] for card in cards) == 10 * len(cards)
        assert all(card["health"] and card["devcore"] == 100 and "A100" in card["type"] for card in cards)
        assert [card.get("index", 0) for card in cards] == list(range(len(cards)))


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        pytest.param(
            gpu_pod("p", {"gpu": 1, "gpumem-percentage": 101}),
            "invalid nvidia.com/gpumem-percentage value 101 in container c0: must be an integer between 0 and 100",
            id="percentage",
        ),
        pytest.param(
            gpu_pod("p", {"gpu": 1}, nodeName="node-00"),
            "pod has node assigned",
            id="node name",
        ),
    ],
)
def test_refused_at_admission(cluster: Cluster, workspace: Workspace, pod: dict[str, Any], words: str) -> None:
    with pytest.raises(KubectlError) as refused:
        kubectl_apply(cluster, workspace, pod)
    assert words in refused.value.stderr
    assert workspace.pods() == []


def test_privileged_container_with_a_share_is_refused(cluster: Cluster, workspace: Workspace) -> None:
    pod = gpu_pod("p", {"gpu": 1})
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    with pytest.raises(KubectlError) as refused:
        kubectl_apply(cluster, workspace, pod)
    assert "container c0 is privileged" in refused.value.stderr


@pytest.mark.parametrize("name", ["CUDA_DEVICE_MEMORY_LIMIT_0", "LD_PRELOAD", "CUDA_DISABLE_CONTROL"])
def test_environment_that_lifts_limits_is_refused(cluster: Cluster, workspace: Workspace, name: str) -> None:
    pod = gpu_pod("p", {"gpu": 1, "gpumem": 100})
    pod["spec"]["containers"][0]["env"] = [{"name": name, "value": "1"}]
    with pytest.raises(KubectlError) as refused:
        kubectl_apply(cluster, workspace, pod)
    assert name in refused.value.stderr


def test_pods_without_shares_are_left_alone(cluster: Cluster, workspace: Workspace) -> None:
    kubectl_apply(cluster, workspace, gpu_pod("cpu", {}))
    pod = workspace.wait_phase("cpu")
    assert pod["spec"]["schedulerName"] == "default-scheduler"
    assert not annotation(pod, CHOSEN_NODE)


def test_waits_for_room_and_takes_it_when_it_is_given_back(cluster: Cluster, workspace: Workspace) -> None:
    cards = registered_cards(cluster, "node-00")
    on_first_node = {"kubernetes.io/hostname": "node-00"}
    workspace.add(gpu_pod("all", {"gpu": len(cards)}, nodeSelector=on_first_node))
    workspace.wait_phase("all")
    workspace.add(gpu_pod("late", {"gpu": 1, "gpumem": 1}, nodeSelector=on_first_node))
    summary = workspace.wait_event("late", "FilteringFailed", "no available node, 1 nodes do not meet")
    assert summary.type == "Warning"
    workspace.wait_event("late", "FilteringFailed", "1 nodes CardInsufficientMemory(node-00)")
    assert "CardInsufficientMemory" in cluster.kubectl("describe", "pod", "late", "-n", workspace.name)
    workspace.remove("all")
    workspace.wait_phase("late")


def test_more_pods_than_room_fill_the_cards_exactly(cluster: Cluster, workspace: Workspace) -> None:
    on_first_node = {"kubernetes.io/hostname": "node-00"}
    room = 2 * len(registered_cards(cluster, "node-00"))
    limits = {"gpu": 1, "gpumem-percentage": 50, "gpucores": 50}
    pods = [gpu_pod(f"p{index}", limits, nodeSelector=on_first_node) for index in range(room + 4)]
    workspace.add_all(pods)
    workspace.wait_all_running(room)

    def rest_is_refused() -> bool:
        waiting = [pod["metadata"]["name"] for pod in workspace.pods() if pod["status"]["phase"] == "Pending"]
        assert len(waiting) == 4, waiting
        return all(any("no available node" in one.message for one in workspace.events(name)) for name in waiting)

    wait_until(rest_is_refused, PATIENCE_S, "the four that do not fit are told so")
    report = audit_cluster(cluster.plane.admin_kubeconfig)
    assert report.faults == []
    held = [holders for (node, _), holders in report.holders.items() if node == "node-00"]
    assert [len(holders) for holders in held] == [2] * (room // 2)
