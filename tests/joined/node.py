"""One node of the embedded cluster with `hami device-plugin` on it; pods are handed over as our scheduler does it.

There is no webhook: a pod may say what it likes about its variables.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, VGPU_NODE
from hami.core.objects import Pod
from hami.core.token import encode_token
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.monitor.containers import look
from hami.shim import layout
from hami.sim import profiles
from hami.sim.cluster import SimCluster
from hami.sim.containers.host import NodeHost
from hami.sim.containers.rootfs import GUEST
from hami.sim.containers.runner import GuestReport, ProcessRunner
from hami.sim.containers.toolkit import Toolkit
from hami.sim.kubelet.kubelet import Kubelet
from hami.sim.kubelet.runner import ContainerStart
from hami.vendors.nvidia.names import ALLOCATED_KEY, REGISTER_KEY, TO_ALLOCATE_KEY

NAME = "gpu-node"
HOOK = "/usr/local"
COMMAND = "test.hami.io/command"
"""Pod annotation: what its container runs instead of the guest alone; `{guest}` is the guest's path."""
_POLL_S = 0.02


def _command(start: ContainerStart) -> Sequence[str]:
    text = start.pod["metadata"].get("annotations", {}).get(COMMAND, "exec {guest} 64 -1")
    return ["/bin/sh", "-c", text.format(guest=GUEST)]


class Node:
    """A running node. `cards` are its uuids, each of 40,960 MiB."""

    def __init__(
        self, cluster: SimCluster, client: ApiClient, kubelet: Kubelet, host: NodeHost, runner: ProcessRunner
    ) -> None:
        self.cluster, self.kubelet, self.host, self.runner = cluster, kubelet, host, runner
        self.cards = [uuid for kind in host.profile.cards for uuid in kind.uuids]
        self.client = client
        self.writer = KubeWriter(client)

    async def start(
        self, name: str, *shares: tuple[int, int], env: Mapping[str, str] | None = None, command: str = ""
    ) -> str:
        """Creates and binds a pod with shares of (card index, MiB); returns its uid."""
        container = {
            "name": "main",
            "image": "none",
            "resources": {"limits": {"nvidia.com/gpu": str(len(shares))}},
            "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        }
        metadata: dict[str, Any] = {"name": name, "annotations": {COMMAND: command} if command else {}}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        made = await self.cluster.apply(pod)
        await self.writer.patch_node_annotations(NAME, {NODE_LOCK: encode_token("default", name, _now())})
        work = "".join(f"{self.cards[card]},NVIDIA,{mib},0:" for card, mib in shares) + ";"
        annotations = {
            VGPU_NODE: NAME, BIND_PHASE: PHASE_ALLOCATING, TO_ALLOCATE_KEY: work, ALLOCATED_KEY: work
        }  # fmt: skip
        uid = str(made["metadata"]["uid"])
        await self.writer.bind("default", name, uid=uid, resource_version="", node=NAME, annotations=annotations)
        return uid

    async def filled(self, uid: str, limit_s: float = 120) -> GuestReport:
        """The guest's report once it holds all it was given."""
        return await self.until(lambda: self.runner.report(uid, "main"), lambda report: report.holding, limit_s)

    async def until(
        self, look: Callable[[], GuestReport], enough: Callable[[GuestReport], bool], limit_s: float = 120
    ) -> GuestReport:
        deadline = time.monotonic() + limit_s
        while not enough(report := look()):
            assert time.monotonic() < deadline, f"after {limit_s} s: {report}"
            await asyncio.sleep(_POLL_S)
        return report

    async def empty(self) -> None:
        """Ends and deletes all pods; their containers get a second to go by themselves."""
        path = "/api/v1/namespaces/default/pods"
        for pod in msgspec.json.decode(await self.client.request("GET", path))["items"]:
            one = f"{path}/{pod['metadata']['name']}"
            await self.client.request("DELETE", one, msgspec.json.encode({"gracePeriodSeconds": 1}))
            await self.cluster.until(one, lambda left: left == {})

    def region(self, uid: str) -> layout.RegionState:
        """The container's region, read from the host's side as a monitor does."""
        [file] = (self.host.hook_path / "vgpu" / "containers" / f"{uid}_main").glob("*.cache")
        return layout.read_region(file)

    async def monitored(self) -> dict[tuple[str, int], int]:
        """Bytes by pod and card as `hami monitor` finds them on the node."""
        listed = msgspec.json.decode(await self.client.request("GET", "/api/v1/pods"))["items"]
        pods = {pod.metadata.uid: pod for pod in msgspec.convert(listed, list[Pod])}
        seen = look(self.host.hook_path / "vgpu", pods)
        assert seen.problems == ()
        return {
            (use.pod, card.index): use.state.used_bytes(card.index) for use in seen.uses for card in use.state.cards
        }


def _now() -> int:
    return int(time.time())


@asynccontextmanager
async def joined_node(kit: Toolkit, folder: Path) -> AsyncIterator[Node]:
    """The node, its plugin registered; everything started in it has ended afterwards."""
    host = NodeHost(folder / "host", NAME, profiles.load("a100"))
    host.install(kit, HOOK)
    runner = ProcessRunner(kit, host, _command)
    async with SimCluster(directory=folder) as cluster, ApiClient(Access(cluster.base_url)) as client:
        kubelet = await cluster.add_node(NAME, runner=runner)
        node = Node(cluster, client, kubelet, host, runner)
        async with _plugin(folder, cluster, host):
            await cluster.until(f"/api/v1/nodes/{NAME}", _registered)
            yield node


def _registered(node: dict[str, Any]) -> bool:
    allocatable = node.get("status", {}).get("allocatable", {}).get("nvidia.com/gpu", "0")
    return allocatable != "0" and REGISTER_KEY in node["metadata"].get("annotations", {})


@asynccontextmanager
async def _plugin(folder: Path, cluster: SimCluster, host: NodeHost) -> AsyncIterator[None]:
    config = folder / "device-config.yaml"
    config.write_text("nvidia: {deviceSplitCount: 10}\n")
    arguments = {
        "kubeconfig": cluster.kubeconfig,
        "node-name": NAME,
        "device-config-file": config,
        "kubelet-dir": cluster.plugin_dir(NAME),
        "hook-path": host.hook_path,
        "container-hook-path": HOOK,
        "lock-dir": folder / "lock",
        "nvml": f"sim:{host.profile_file}",
    }
    flags = [f"--{name}={value}" for name, value in arguments.items()]
    with (folder / "plugin.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hami.apps", "device-plugin", *flags, stderr=log
        )
    try:
        yield
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGTERM)
        await process.wait()
