"""`hami device-plugin` as a process of its own on a node of the embedded cluster, and what a scheduler does there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, VGPU_NODE
from hami.core.token import encode_token
from hami.kube.writer import KubeWriter
from hami.sim.cluster import SimCluster
from hami.vendors.nvidia.names import ALLOCATED_KEY, TO_ALLOCATE_KEY

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
async def plugin_process(
    folder: Path, cluster: SimCluster, *flags: str, cards: str = "a100", node_config: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`hami device-plugin` on the simulated cards of a profile; killed at the end if it still runs."""
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
        f"--node-config-file={node_config or ''}",
        "--metrics-bind-address=",
        f"--nvml=sim:{cards}",
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
