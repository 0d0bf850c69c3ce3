"""Kubelet, plugin and folder come and go; somebody else wants the socket; processes die between two writes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hami.core.errors import ConfigError, TransportError
from hami.core.keys import PHASE_ALLOCATING, PHASE_SUCCESS
from hami.deviceplugin.board import Board
from hami.deviceplugin.registration import identity
from hami.deviceplugin.server import PluginServer
from hami.deviceplugin.servicer import DevicePluginServicer
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shared_cards import SharedCards
from hami.deviceplugin.single import AnotherPluginError, NodeLock
from hami.kube import paths
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import NvidiaConfig
from tests.deviceplugin.bench import NODE, A, B, Bench
from tests.deviceplugin.calls import ONE, refused


async def test_registration_says_who_we_are(node: Bench) -> None:
    await node.start_plugin()
    (request,) = node.kubelet.requests
    assert (request.version, request.endpoint, request.resource_name) == (
        "v1beta1",
        "nvidia-gpu.sock",
        "nvidia.com/gpu",
    )
    assert request.options.get_preferred_allocation_available
    options = await node.kubelet.plugin.GetDevicePluginOptions(pb.Empty())
    assert options == request.options
    assert await node.kubelet.plugin.PreStartContainer(pb.PreStartContainerRequest()) == pb.PreStartContainerResponse()


async def test_another_resource_name_names_resource_and_socket(node: Bench) -> None:
    await node.start_plugin(nvidia=NvidiaConfig(resource_count_name="example.com/vgpu"), preferred_allocation=False)
    (request,) = node.kubelet.requests
    assert (request.endpoint, request.resource_name) == ("nvidia-vgpu.sock", "example.com/vgpu")
    assert not request.options.get_preferred_allocation_available


async def test_every_replica_of_every_card_is_listed_in_order(node: Bench) -> None:
    await node.start_plugin()
    assert list(node.kubelet.devices) == [f"{card}-{number}" for card in (A, B) for number in range(3)]
    assert set(node.kubelet.devices.values()) == {"Healthy"}
    assert all(not device.HasField("topology") for device in node.kubelet.lists[-1])


async def test_numa_nodes_are_told_where_wanted(node: Bench) -> None:
    await node.start_plugin(nvidia=NvidiaConfig(device_split_count=1, enable_numa_topology=True))
    assert [device.topology.nodes[0].ID for device in node.kubelet.lists[-1]] == [0, 1]


@pytest.mark.parametrize("how", ["restart", "lose_folder"])
async def test_a_new_kubelet_is_registered_with(node: Bench, how: str) -> None:
    await node.start_plugin()
    await getattr(node.kubelet, how)()
    await node.until(lambda: len(node.kubelet.requests) == 2, "a second registration")
    await asyncio.wait_for(node.plugin.registered.wait(), 60)
    await node.bound_pod("p1", ONE)
    await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p1") == PHASE_SUCCESS


async def test_a_new_kubelet_that_left_our_socket_is_registered_with_too(node: Bench) -> None:
    """Kubelet clears its folder when it starts; one that does not, or cannot, knows us no more either."""
    await node.start_plugin()
    kubelet_socket = node.kubelet.folder / "kubelet.sock"
    kubelet_socket.rename(kubelet_socket.with_name("aside"))
    kubelet_socket.with_name("aside").rename(kubelet_socket)
    await node.until(lambda: len(node.kubelet.requests) == 2, "a second registration")
    await asyncio.wait_for(node.plugin.registered.wait(), 60)


async def test_kubelet_that_comes_late_is_waited_for(node: Bench) -> None:
    await node.kubelet.stop()
    (node.kubelet.folder / "kubelet.sock").unlink(missing_ok=True)
    await node.start_plugin(wait=False)
    await node.until(lambda: node.plugin.board.state.cards, "cards")
    assert not node.plugin.registered.is_set()
    await node.kubelet.start()
    await node.until(lambda: node.kubelet.devices, "the list after kubelet's start")


async def test_a_removed_socket_is_made_again(node: Bench) -> None:
    await node.start_plugin()
    (node.kubelet.folder / "nvidia-gpu.sock").unlink()
    await node.until(lambda: len(node.kubelet.requests) == 2, "a second registration")


async def test_a_stale_socket_is_replaced(node: Bench) -> None:
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(node.kubelet.folder / "nvidia-gpu.sock"))
    stale.close()
    await node.start_plugin()
    assert len(node.kubelet.devices) == 6


async def test_a_graceful_end_removes_the_socket(node: Bench) -> None:
    await node.start_plugin()
    await node.stop_plugin()
    assert identity(node.kubelet.folder / "nvidia-gpu.sock") is None


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16, 32])
async def test_an_end_in_the_middle_of_the_start_leaves_no_server(turns: int) -> None:
    """A reloaded configuration cancels the plugin after any turn of the loop; its successor must find no server."""
    nobody: Any = None
    settings = PluginSettings(node_name=NODE)
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as folder:
        path = Path(folder) / "plugin.sock"
        server = PluginServer(path, DevicePluginServicer(Board(settings), SharedCards(settings, nobody, nobody)))
        start = asyncio.create_task(server.__aenter__())
        for _ in range(turns):
            await asyncio.sleep(0)
        start.cancel()
        await asyncio.wait({start})
        if not start.cancelled():
            await server.stop()
        assert not path.exists()


async def test_somebody_elses_plugin_on_our_socket_is_said_and_left_alone(node: Bench) -> None:
    path = node.kubelet.folder / "nvidia-gpu.sock"
    foreign = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
    before = identity(path)
    await node.start_plugin(wait=False)
    await node.until(lambda: node.events.on_nodes, "an event")
    assert node.events.on_nodes[0][1] == "AnotherDevicePlugin"
    assert identity(path) == before
    foreign.close()
    await foreign.wait_closed()
    await node.until(lambda: node.kubelet.devices, "our turn")
    assert len([event for event in node.events.on_nodes if event[1] == "AnotherDevicePlugin"]) == 1


async def test_a_plugin_that_takes_our_socket_is_not_robbed_of_it(node: Bench) -> None:
    await node.start_plugin()
    path = node.kubelet.folder / "nvidia-gpu.sock"
    path.unlink()
    foreign = await asyncio.start_unix_server(lambda reader, writer: writer.close(), path)
    await node.until(lambda: node.events.on_nodes or len(node.kubelet.requests) > 1, "notice")
    foreign.close()
    await foreign.wait_closed()


def test_the_second_plugin_on_a_node_is_told_of_the_first(tmp_path: Path) -> None:
    first, second = NodeLock(tmp_path, "nvidia-gpu"), NodeLock(tmp_path, "nvidia-gpu")
    first.acquire()
    first.acquire()
    with pytest.raises(AnotherPluginError, match=rf"pid {os.getpid()}"):
        second.acquire()
    NodeLock(tmp_path, "nvidia-other").acquire()
    first.release()
    second.acquire()
    second.release()


async def test_the_second_plugin_waits_for_the_first(node: Bench) -> None:
    await node.start_plugin()
    first = node.plugin
    await node.start_plugin(wait=False)
    await node.until(lambda: node.events.on_nodes, "an event")
    assert node.events.on_nodes[0][1] == "AnotherDevicePlugin"
    assert first.registered.is_set()
    assert not node.plugin.registered.is_set()


async def test_a_folder_with_too_long_a_name_is_a_configuration_error(node: Bench) -> None:
    folder = node.folder / ("x" * 120)
    folder.mkdir()
    await node.start_plugin(wait=False, kubelet_dir=folder)
    with pytest.raises(BaseExceptionGroup) as caught:
        await asyncio.wait_for(node.running(), 60)
    assert caught.group_contains(ConfigError, match="107 bytes")


@pytest.mark.parametrize(("blind", "verb"), [(True, "get"), (False, "patch")])
async def test_killed_before_the_erase_the_next_call_is_served(node: Bench, blind: bool, verb: str) -> None:
    await node.start_plugin(blind=blind)
    await node.bound_pod("p1", ONE)
    if not blind:
        await node.seen("p1")
    fault = node.api.faults.add(Fault("latency", verb=verb, resource="pods", seconds=300, times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: fault.hits, "the read before the erase, or the erase")
    await node.kill_plugin(call)
    await node.start_plugin()
    answer = await node.kubelet.allocate([f"{A}-0"])
    assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == A
    assert await node.phase("p1") == PHASE_SUCCESS
    await node.token_free()


async def test_killed_after_the_erase_nobody_gets_the_segment(node: Bench) -> None:
    await node.start_plugin(heartbeat="on-change")
    await node.bound_pod("p1", ONE)
    await node.bound_pod("p2", f"{B},NVIDIA,500,0:;", token=False)
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="nodes", seconds=30, times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: fault.hits, "the write after the erase")
    await node.kill_plugin(call)
    node.api.faults.clear()
    await node.start_plugin()
    assert (await node.work("p1"), await node.phase("p1")) == (";", PHASE_SUCCESS)
    answer = await node.kubelet.allocate([f"{A}-0"])
    assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == B
    assert await refused(node.kubelet.allocate([f"{A}-0"]))
    assert await node.phase("p2") == PHASE_SUCCESS


async def test_a_restarted_kubelet_that_asks_again_gets_the_same_answer(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    first = await node.kubelet.allocate([f"{A}-0"])
    assert await refused(node.kubelet.allocate([f"{A}-0"])), "the same kubelet never asks twice"
    await node.kubelet.restart()
    await node.until(lambda: len(node.kubelet.requests) == 2, "a second registration")
    assert await refused(node.kubelet.allocate([f"{A}-1"])), "other ids are another pod's"
    assert await node.kubelet.allocate([f"{A}-0"]) == first
    assert node.plugin.stats.replayed == 1


async def test_an_answer_is_not_repeated_for_a_pod_that_ended(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.kubelet.allocate([f"{A}-0"])
    await node.client.request(
        "PATCH",
        "/api/v1/namespaces/default/pods/p1/status",
        b'{"status":{"phase":"Failed"}}',
        "application/merge-patch+json",
    )
    await node.kubelet.restart()
    await node.until(lambda: len(node.kubelet.requests) == 2, "a second registration")
    assert await refused(node.kubelet.allocate([f"{A}-0"]))


async def test_kubelet_that_hangs_up_in_the_middle_leaves_nothing_half_done(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    fault = node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=0.2, times=1))
    call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
    await node.until(lambda: fault.hits, "the erase")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await node.until(lambda: node.plugin.stats.served == 1, "the call's end")
    assert await node.phase("p1") == PHASE_SUCCESS
    await node.token_free()


async def test_the_work_list_of_a_waiting_pod_is_untouched_by_a_restart(node: Bench) -> None:
    await node.start_plugin()
    await node.bound_pod("p1", ONE)
    await node.stop_plugin()
    await node.start_plugin()
    assert (await node.work("p1"), await node.phase("p1")) == (ONE, PHASE_ALLOCATING)
    assert (await node.node()).metadata.name == NODE


async def test_folders_of_pods_that_are_gone_are_collected_at_the_second_look(node: Bench) -> None:
    await node.start_plugin(cleanup_interval_s=0.05)
    pod = await node.bound_pod("p1", ONE)
    await node.kubelet.allocate([f"{A}-0"])
    folders = node.folder / "hook/vgpu/containers"
    (folders / "another-uid_main").mkdir()
    await node.until(lambda: [each.name for each in folders.iterdir()] == [f"{pod.metadata.uid}_main"], "collection")
    await node.client.request("DELETE", paths.pod("default", "p1"), params={"gracePeriodSeconds": "0"})
    await node.until(lambda: not list(folders.iterdir()), "the second collection")


async def test_the_folder_of_a_pod_that_cannot_be_decoded_is_kept(node: Bench) -> None:
    await node.start_plugin(cleanup_interval_s=0.05)
    body = b'{"metadata":{"name":"odd"},"spec":{"nodeName":"n1","containers":[{"name":"main","image":"i"}]}}'
    made = json.loads(await node.client.request("POST", paths.pods_in("default"), body))
    odd = b'{"status":{"phase":["what"]}}'
    path = f"{paths.pod('default', 'odd')}/status"
    await node.client.request("PATCH", path, odd, "application/merge-patch+json")
    with pytest.raises(TransportError, match="cannot be read"):
        await node.writer.list_pods_on_node(NODE)
    folders = node.folder / "hook/vgpu/containers"
    kept = f"{made['metadata']['uid']}_main"
    for name in (kept, "gone-uid_main"):
        (folders / name).mkdir(parents=True)
    await node.until(lambda: [each.name for each in folders.iterdir()] == [kept], "collection of the other")
