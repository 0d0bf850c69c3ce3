"""The plugin as a process between the embedded cluster's API server and kubelet: a pod runs, SIGKILL, another runs."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from pathlib import Path

import pytest

from hami.core.codec import decode_register
from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_SUCCESS
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.sim.cluster import SimCluster
from hami.vendors.nvidia.names import REGISTER_KEY
from tests.deviceplugin.plugin_process import NODE, allocatable, hand_over, plugin_process, runs


@pytest.mark.timeout(300)
async def test_pods_run_before_and_after_a_sigkill() -> None:
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as temporary:
        folder = Path(temporary)
        async with SimCluster(directory=folder) as cluster, ApiClient(Access(cluster.base_url)) as client:
            writer = KubeWriter(client)
            kubelet = await cluster.add_node(NODE)
            async with plugin_process(folder, cluster) as process:
                node = await cluster.until(
                    f"/api/v1/nodes/{NODE}",
                    lambda node: allocatable(node) == "32" and REGISTER_KEY in node["metadata"].get("annotations", {}),
                )
                cards = decode_register(node["metadata"]["annotations"][REGISTER_KEY], "NVIDIA", "test")
                assert [(card.slots, card.memory_mib) for card in cards] == [(4, 40960)] * 8
                await hand_over(cluster, writer, "p1", cards[5].id)
                await cluster.until("/api/v1/namespaces/default/pods/p1", runs)
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
            await cluster.until(f"/api/v1/nodes/{NODE}", lambda node: allocatable(node) == "0")
            async with plugin_process(folder, cluster) as process:
                await cluster.until(f"/api/v1/nodes/{NODE}", lambda node: allocatable(node) == "32")
                await hand_over(cluster, writer, "p2", cards[2].id)
                done = await cluster.until("/api/v1/namespaces/default/pods/p2", runs)
                assert done["metadata"]["annotations"][BIND_PHASE] == PHASE_SUCCESS
                os.kill(process.pid, signal.SIGTERM)
                assert await asyncio.wait_for(process.wait(), 60) == 0
            assert not (cluster.plugin_dir(NODE) / "nvidia-gpu.sock").exists()
            served = [allocation.env["NVIDIA_VISIBLE_DEVICES"] for allocation in kubelet.allocations]
            assert served == [cards[5].id, cards[2].id]
            assert NODE_LOCK not in (await writer.get_node(NODE)).annotations
