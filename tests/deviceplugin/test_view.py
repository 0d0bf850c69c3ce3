"""Served from the node's view: one write before the answer, the token's release beside it (docs/adr/0014)."""

from __future__ import annotations

import asyncio

import grpc.aio
import msgspec
import pytest

from hami.core.keys import NODE_LOCK, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from hami.core.objects import Node, ObjectMeta, Pod, PodSpec
from hami.core.token import encode_token
from hami.deviceplugin.node_view import NodeView
from hami.kube import paths
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from hami.vendors.nvidia.names import TO_ALLOCATE_KEY
from tests.deviceplugin.bench import NODE, A, B, Bench

ONE = f"{A},NVIDIA,3000,30:;"
VENDOR = Nvidia(NvidiaConfig())


def requests_for_pods(node: Bench) -> list[str]:
    """Verbs of the finished requests about pods, watches left out."""
    return [each.verb for each in node.api.seen if each.resource == "pods" and each.verb != "watch"]


async def test_one_write_and_no_read_comes_before_the_answer(node: Bench) -> None:
    plugin = await node.start_plugin(heartbeat="on-change", report_interval_s=30.0)
    await node.bound_pod("p1", f"{A},NVIDIA,1000,0:;{B},NVIDIA,2000,0:;", containers=("a", "b"))
    await node.seen("p1")
    node.api.seen.clear()
    assert await node.kubelet.prefer([f"{A}-1", f"{B}-0"], [], 1) == [f"{A}-1"]
    first = await node.kubelet.allocate([f"{A}-1"])
    second = await node.kubelet.allocate([f"{B}-0"])
    assert requests_for_pods(node) == ["patch", "patch"]
    assert not [each for each in node.api.seen if each.resource == "nodes" and each.verb == "get"]
    envs = [each.container_responses[0].envs for each in (first, second)]
    assert [each["NVIDIA_VISIBLE_DEVICES"] for each in envs] == [A, B]
    assert (plugin.stats.served, plugin.stats.without_reads) == (2, 2)
    assert await node.phase("p1") == PHASE_SUCCESS
    await node.token_free()


async def test_where_it_may_not_watch_it_reads(node: Bench) -> None:
    plugin = await node.start_plugin(blind=True)
    await node.bound_pod("p1", ONE)
    assert await node.kubelet.prefer([f"{A}-1", f"{B}-0"], [], 1) == [f"{A}-1"]
    await node.kubelet.allocate([f"{A}-0"])
    assert (plugin.stats.served, plugin.stats.without_reads) == (1, 0)
    await node.token_free()


async def test_a_pod_that_was_written_meanwhile_is_read_and_served(node: Bench) -> None:
    plugin = await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=0.2, times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: fault.hits, "the erase")
    await node.writer.patch_pod_annotations("default", "p1", {"other": "1"}, uid="")
    await call
    assert (plugin.stats.served, plugin.stats.without_reads) == (1, 0)
    assert await node.phase("p1") == PHASE_SUCCESS
    assert (await node.pod("p1")).annotations["other"] == "1"


async def test_an_erase_that_the_server_fails_is_decided_again(node: Bench) -> None:
    plugin = await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    node.api.faults.add(Fault("internal-error", verb="patch", resource="pods", times=1))
    await node.kubelet.allocate([f"{A}-0"])
    assert (plugin.stats.served, plugin.stats.without_reads) == (1, 0)
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_an_erase_that_fails_twice_fails_the_pod(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    node.api.faults.add(Fault("internal-error", verb="patch", resource="pods", times=2))
    with pytest.raises(grpc.aio.AioRpcError, match="the API server"):
        await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_FAILED
    await node.token_free()


async def test_an_erase_whose_answer_was_lost_is_found_and_no_other_pod_is_taken(node: Bench) -> None:
    """Without the look, the live read would find the one pod that still waits, and give its share away."""
    plugin = await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    slow = node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=0.5, times=1))
    lost = node.api.faults.add(Fault("lost-answer", verb="patch", resource="pods", times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: slow.hits, "the erase")
    await node.bound_pod("p2", f"{B},NVIDIA,1,0:;", token=False)
    answer = await call
    assert lost.hits
    assert answer.container_responses[0].envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    assert plugin.stats.without_reads == 1
    assert await node.phase("p1") == PHASE_SUCCESS
    assert await node.phase("p2") == PHASE_ALLOCATING
    await node.token_free()


@pytest.mark.parametrize("landed", [False, True])
async def test_a_write_that_takes_longer_than_the_deadline_fails_the_pod_with_what_to_do(
    node: Bench, landed: bool
) -> None:
    """The answer comes too late (`landed`), or the write itself does: then it meets another version of the pod."""
    await node.start_plugin(allocate_timeout_s=2.0)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    if landed:
        node.api.faults.add(Fault("lost-answer", verb="patch", resource="pods", times=1))
        node.api.faults.add(Fault("latency", verb="get", resource="pods", seconds=4.0, times=1))
    else:
        node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=4.0, times=1))
    with pytest.raises(grpc.aio.AioRpcError, match=r"not done within 2 s.*Delete the pod"):
        await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_FAILED
    assert node.events.on_pods[-1][:2] == ("p1", "AllocateFailed")
    await node.token_free()
    assert node.plugin.stats.failed == 1


async def test_a_write_out_of_time_for_a_pod_that_went_meanwhile_harms_nobody(node: Bench) -> None:
    await node.start_plugin(allocate_timeout_s=2.0)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=4.0, times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: fault.hits, "the erase")
    await node.client.request("DELETE", paths.pod("default", "p1"), params={"gracePeriodSeconds": "0"})
    other = await node.bound_pod("p2", ONE, token=False)
    with pytest.raises(grpc.aio.AioRpcError, match=r"not done within 2 s"):
        await call
    assert await node.pod("p2") == other
    assert node.plugin.stats.failed == 0


async def test_files_that_cannot_be_made_fail_the_pod_though_its_segment_is_erased(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    (node.folder / "hook/vgpu/containers").write_text("not a folder")
    with pytest.raises(grpc.aio.AioRpcError, match="files on the node"):
        await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_FAILED
    assert node.events.on_pods[-1][:2] == ("p1", "AllocateFailed")
    await node.token_free()


async def test_a_graceful_stop_waits_for_the_token_on_its_way_back(node: Bench) -> None:
    await node.start_plugin(heartbeat="on-change", report_interval_s=30.0)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="nodes", seconds=0.5, times=1))
    await node.kubelet.allocate([f"{A}-0"])
    await node.until(lambda: fault.hits, "the release")
    assert await node.token_owner() == "p1"
    await node.stop_plugin()
    assert await node.token_owner() == ""


async def test_the_release_leaves_the_token_of_a_namesake_alone(node: Bench) -> None:
    await node.start_plugin(heartbeat="on-change", report_interval_s=30.0)
    await node.bound_pod("p1", ONE)
    await node.seen("p1")
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="nodes", seconds=0.5, times=1))
    await node.kubelet.allocate([f"{A}-0"])
    await node.until(lambda: fault.hits, "the release")
    later = encode_token("default", "p1", 1_800_000_001)
    await node.writer.patch_node_annotations(NODE, {NODE_LOCK: later})
    await node.stop_plugin()
    assert (await node.node()).annotations[NODE_LOCK] == later


async def test_what_is_deleted_leaves_the_view(node: Bench) -> None:
    """Else a pod that is gone would count as another candidate for ever, and each call would read."""
    plugin = await node.start_plugin()
    pods = [await node.bound_pod(name, ONE, token=name == "p2") for name in ("p1", "p2")]
    await node.until(lambda: len(plugin.view.pods) == 2, "both are seen")
    assert plugin.view.find((1,), VENDOR) is None
    await node.client.request("DELETE", paths.pod("default", "p1"), params={"gracePeriodSeconds": "0"})
    await node.seen("p2")
    assert [pod.metadata.uid for pod in plugin.view.pods] == [pods[1].metadata.uid]
    node.api.faults.forget_history()
    node.api.faults.cut_watches()
    await node.client.request("DELETE", paths.pod("default", "p2"), params={"gracePeriodSeconds": "0"})
    await node.until(lambda: not plugin.view.pods, "a new list")


# --- the view alone ------------------------------------------------------------------------------------------------


class Scene:
    """A view that can say yes, until a test takes something away."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.view = NodeView(NODE, lambda: self.now_s)
        self.view.pods_listed([])
        self.view.node_answered(self.node(""), self.now_s)
        self.pod = Pod(
            ObjectMeta(
                "p1", "default", "u1", "10", annotations={"hami.io/bind-phase": "allocating", TO_ALLOCATE_KEY: ONE}
            ),
            PodSpec(node_name=NODE),
        )
        self.view.node_seen(self.node(encode_token("default", "p1", 1), "6"))
        self.view.pod_seen(self.pod)

    @staticmethod
    def node(token: str, version: str = "5", name: str = NODE) -> Node:
        return Node(ObjectMeta(name, resource_version=version, annotations={NODE_LOCK: token} if token else {}))

    def finds(self, *counts: int) -> str:
        found = self.view.find(counts or (1,), VENDOR)
        return found.pod.metadata.uid if found is not None else ""


def test_it_says_yes() -> None:
    assert Scene().finds() == "u1"
    assert Scene().finds(2) == ""


def test_of_an_old_token_it_says_nothing_until_it_was_absent_again() -> None:
    scene = Scene()
    scene.now_s += 59.0
    assert scene.finds() == "u1"
    scene.now_s += 1.0
    assert scene.finds() == ""
    scene.view.node_answered(scene.node(encode_token("default", "p1", 1), "7"), scene.now_s)
    assert scene.finds() == "", "an answer that shows the token does not make it young"
    scene.view.node_answered(scene.node("", "8"), scene.now_s)
    scene.view.node_seen(scene.node(encode_token("default", "p1", 2), "9"))
    assert scene.finds() == "u1"


def test_what_comes_late_does_not_go_back() -> None:
    scene = Scene()
    scene.view.node_seen(scene.node("", "4"))
    scene.view.pod_seen(Pod(ObjectMeta("p1", "default", "u1", "9"), PodSpec(node_name=NODE)))
    scene.view.pods_listed([Pod(ObjectMeta("p1", "default", "u1", "9"), PodSpec(node_name=NODE))])
    scene.view.pod_gone("default/p1", "of a namesake")
    assert scene.finds() == "u1"


def test_what_is_not_this_nodes_is_not_taken() -> None:
    scene = Scene()
    scene.view.node_answered(scene.node(encode_token("default", "p2", 1), "99", "n2"), scene.now_s)
    scene.view.pod_seen(Pod(ObjectMeta("p2", "default", "u2", "99"), PodSpec(node_name="n2")))
    assert scene.finds() == "u1"
    assert [pod.metadata.uid for pod in scene.view.pods] == ["u1"]


@pytest.mark.parametrize(
    ("version", "deleted", "work"),
    [("11", "2026-01-01T00:00:00Z", ONE), ("11", None, ";"), ("odd", None, ONE)],
    ids=["being deleted", "served", "a version that tells no order"],
)
def test_of_a_pod_that_may_not_be_served_it_says_nothing(version: str, deleted: str | None, work: str) -> None:
    scene = Scene()
    annotations = {**scene.pod.annotations, TO_ALLOCATE_KEY: work}
    meta = msgspec.structs.replace(
        scene.pod.metadata, resource_version=version, deletion_timestamp=deleted, annotations=annotations
    )
    scene.view.pod_seen(msgspec.structs.replace(scene.pod, metadata=meta))
    assert scene.finds() == ""


def test_without_a_node_or_a_list_it_says_nothing() -> None:
    scene = Scene()
    scene.view.node_gone()
    assert scene.finds() == ""
    fresh = NodeView(NODE, lambda: 100.0)
    fresh.node_answered(scene.node("", "5"), 100.0)
    fresh.node_seen(scene.node(encode_token("default", "p1", 1), "6"))
    fresh.pod_seen(scene.pod)
    assert fresh.find((1,), VENDOR) is None
    fresh.pods_listed([scene.pod])
    assert fresh.find((1,), VENDOR) is not None
