"""The plugin as a process between the embedded cluster's API server and kubelet: a pod runs, SIGKILL, another runs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hami.core.codec import decode_register
from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, PHASE_SUCCESS, VGPU_NODE
from hami.core.token import encode_token
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.sim.cluster import SimCluster
from hami.vendors.nvidia.names import ALLOCATED_KEY, REGISTER_KEY, TO_ALLOCATE_KEY

NODE = "gpu-node"
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "schedulerName": "hami-scheduler",
        "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
    },
}


@asynccontextmanager
async def plugin_process(folder: Path, cluster: SimCluster, *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`hami device-plugin` on eight simulated cards; killed at the end if it still runs."""
    config = folder / "device-config.yaml"
    config.write_text("nvidia: {deviceSplitCount: 4}\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "import sys; from hami.apps.cli import main; sys.exit(main())",
        "device-plugin",
        f"--kubeconfig={cluster.kubeconfig}",
        f"--node-name={NODE}",
        f"--device-config-file={config}",
        f"--kubelet-dir={cluster.plugin_dir(NODE)}",
        f"--hook-path={folder / 'hook'}",
        f"--lock-dir={folder / 'lock'}",
        "--node-config-file=",
        "--metrics-bind-address=",
        "--nvml=sim:a100",
        *flags,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()


def allocatable(node: dict[str, Any]) -> str:
    found = node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", "0")
    return str(found)


async def hand_over(cluster: SimCluster, writer: KubeWriter, name: str, card: str) -> None:
    """What our scheduler does: token, then a Binding with the allocation."""
    made = await cluster.apply({**POD, "metadata": {"name": name}})
    await writer.patch_node_annotations(NODE, {NODE_LOCK: encode_token("default", name, 1_800_000_000)})
    work = f"{card},NVIDIA,4096,25:;"
    annotations = {
        VGPU_NODE: NODE,
        BIND_PHASE: PHASE_ALLOCATING,
        TO_ALLOCATE_KEY: work,
        ALLOCATED_KEY: work,
    }
    await writer.bind(
        "default", name, uid=made["metadata"]["uid"], resource_version="", node=NODE, annotations=annotations
    )


def runs(pod: dict[str, Any]) -> bool:
    return bool(pod.get("status", {}).get("phase") == "Running")


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
