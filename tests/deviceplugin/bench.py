"""One node for tests: API server stand-in, kubelet stand-in, simulated cards, and our plugin between them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from hami.core.codec import RegisterForm, decode_shares
from hami.core.keys import BIND_PHASE, MIG_ALLOCATIONS, NODE_LOCK, PHASE_ALLOCATING, VGPU_NODE
from hami.core.objects import Node, Pod, pod_decoder
from hami.core.token import encode_token
from hami.deviceplugin import event_reasons
from hami.deviceplugin.plugin import Plugin
from hami.deviceplugin.settings import HealthSettings, PluginSettings
from hami.kube import paths
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.nvml.simulated import SimulatedProbe, made_uuid
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from hami.vendors.nvidia.names import ALLOCATED_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.kubelet import FakeKubelet
from tests.tools.api_server import connected
from tests.tools.waiting import until

NODE = "n1"
CARDS = """
cards:
  - {model: NVIDIA A100-SXM4-40GB, count: 2, memory_mib: 40960, numa: [0, 1], nvlink: 4}
"""
A = made_uuid(NODE, 0)
B = made_uuid(NODE, 1)
DEADLINE_S = 60.0


GOOD_NEWS = {event_reasons.CARD_HEALTHY, event_reasons.CARDS_DIFFER}


class RecordedEvents:
    """Implements EventSink."""

    def __init__(self) -> None:
        self.on_pods: list[tuple[str, str, str]] = []
        self.on_nodes: list[tuple[str, str, str]] = []
        self.kinds: set[tuple[str, bool]] = set()
        """Each reason, and whether it came as a warning."""

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        self.on_pods.append((pod.metadata.name, reason, message))
        self.kinds.add((reason, warning))

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        self.on_nodes.append((node, reason, message))
        self.kinds.add((reason, warning))


class MortalClient(ApiClient):
    """A client that can be cut off, with what it is doing."""

    dead = False

    async def die(self) -> None:
        self.dead = True
        await self.close()

    def _pool(self) -> aiohttp.ClientSession:
        if self.dead:
            raise aiohttp.ClientConnectionError("this process is dead")
        return super()._pool()


class Bench:
    """Everything of one node; `start_plugin` may be called again for a restart."""

    def __init__(self, folder: Path, api: ApiServer, client: ApiClient) -> None:
        self.folder = folder
        self.api = api
        self.client = client
        self.writer = KubeWriter(client)
        self.kubelet = FakeKubelet(folder / "kubelet")
        self.events = RecordedEvents()
        self.profile = folder / "profile.yaml"
        self.profile.write_text(CARDS)
        self.install_shim()
        self._tasks: list[asyncio.Task[None]] = []
        self._clients: list[ApiClient] = []
        self.plugin: Plugin
        self.plugin_client: MortalClient

    def install_shim(self, container_hook_path: Path | None = None) -> None:
        """What the installer leaves on the host."""
        vgpu = self.folder / "hook/vgpu"
        vgpu.mkdir(parents=True, exist_ok=True)
        (vgpu / "libvgpu.so").write_text("library")
        (vgpu / "ld.so.preload").write_text(f"{container_hook_path or self.folder / 'hook'}/vgpu/libvgpu.so\n")

    def settings(self, **changes: Any) -> PluginSettings:
        base = PluginSettings(
            node_name=NODE,
            nvidia=NvidiaConfig(device_split_count=3),
            kubelet_dir=self.kubelet.folder,
            hook_path=self.folder / "hook",
            lock_dir=self.folder / "lock",
            cdi_root=self.folder / "cdi",
            driver_root=self.folder / "root",
            driver_root_here=self.folder / "root",
            dev_root=self.folder / "root",
            report_interval_s=0.05,
            watch_interval_s=0.01,
            register_form=RegisterForm.JSON,
            health=HealthSettings(poll_s=0.05, xid_quiet_s=0.2),
            allocate_timeout_s=DEADLINE_S,
        )
        return msgspec.structs.replace(base, **changes)

    async def start_plugin(self, *, wait: bool = True, blind: bool = False, **changes: Any) -> Plugin:
        """`blind`: every watch of the API server fails, so that the plugin has to read what it wants to know."""
        if blind:
            self.api.faults.add(Fault("internal-error", verb="watch"))
        self.plugin_client = MortalClient(Access(self.api.base_url), qps=0)
        self._clients.append(self.plugin_client)
        probe = SimulatedProbe(self.profile, NODE, self.kubelet.folder / "hami")
        self.plugin = Plugin(self.settings(**changes), self.plugin_client, probe, self.events)
        self._tasks.append(asyncio.create_task(self.plugin.run()))
        if wait:
            await asyncio.wait_for(self.plugin.registered.wait(), DEADLINE_S)
            await self.until(lambda: self.kubelet.devices, "the device list")
        return self.plugin

    def allocate_within(self, limit_s: float) -> None:
        """From now on a call of Allocate has so much time; the plugin goes on."""
        allocator = self.plugin._allocator
        allocator._settings = msgspec.structs.replace(allocator._settings, allocate_timeout_s=limit_s)

    async def stop_plugin(self) -> None:
        task = self._tasks.pop()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def kill_plugin(self, call: asyncio.Task[Any]) -> None:
        """Ends the plugin in the middle of `call` as SIGKILL does: from now on it writes nothing and answers nobody."""
        await self.plugin_client.die()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await self.stop_plugin()

    async def running(self) -> None:
        """Waits for the end of the latest plugin; raises what ended it."""
        await self._tasks.pop()

    async def close(self) -> None:
        while self._tasks:
            await self.stop_plugin()
        for client in self._clients:
            await client.close()
        await self.kubelet.stop()

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await until(condition, what, DEADLINE_S)

    def was_unhealthy(self, replica: str) -> bool:
        """Whether kubelet has ever heard so of it: a card that had an error comes back by itself, soon."""
        return any(
            replica == each.ID and each.health == "Unhealthy" for devices in self.kubelet.lists for each in devices
        )

    def lists_of_pods(self) -> int:
        """How often somebody has listed pods, as far as the API server remembers."""
        return sum(each.verb == "list" and each.resource == "pods" for each in self.api.seen)

    # --- the scheduler's part ----------------------------------------------------------------------------------------

    async def bound_pod(
        self,
        name: str,
        work: str,
        *,
        containers: tuple[str, ...] = ("main",),
        init: tuple[str, ...] = (),
        token: bool = True,
        slices: str = "",
        env_of: Mapping[str, list[dict[str, str]]] | None = None,
        **more: Any,
    ) -> Pod:
        """A pod as our scheduler hands it over: token on the node, allocation and MIG `slices` on the Binding.

        `env_of`: variables by container; `more`: fields of every container.
        """
        named = env_of or {}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "containers": [
                    {"name": each, "image": "none", **more, **({"env": named[each]} if each in named else {})}
                    for each in containers
                ]
            },
        }
        if init:
            body["spec"]["initContainers"] = [{"name": each, "image": "none"} for each in init]
        made = pod_decoder.decode(
            await self.client.request("POST", paths.pods_in("default"), msgspec.json.encode(body))
        )
        if token:
            await self.set_token(name)
        annotations = {
            VGPU_NODE: NODE,
            BIND_PHASE: PHASE_ALLOCATING,
            TO_ALLOCATE_KEY: work,
            ALLOCATED_KEY: work,
            **({MIG_ALLOCATIONS: slices} if slices else {}),
        }
        await self.writer.bind(
            "default", name, uid=made.metadata.uid, resource_version="", node=NODE, annotations=annotations
        )
        return await self.pod(name)

    async def set_token(self, pod: str | None) -> None:
        text = encode_token("default", pod, 1_800_000_000) if pod else None
        await self.writer.patch_node_annotations(NODE, {NODE_LOCK: text})

    async def pod(self, name: str) -> Pod:
        return await self.writer.get_pod("default", name)

    async def phase(self, name: str) -> str:
        return (await self.pod(name)).annotations.get(BIND_PHASE, "")

    async def work(self, name: str) -> str:
        return (await self.pod(name)).annotations.get(TO_ALLOCATE_KEY, "")

    async def node(self) -> Node:
        return await self.writer.get_node(NODE)

    async def token_owner(self) -> str:
        return (await self.node()).annotations.get(NODE_LOCK, ",").rpartition(",")[2]

    async def token_free(self) -> None:
        """Waits until nobody holds the token: it is given back beside the answer."""
        async with asyncio.timeout(DEADLINE_S):
            while await self.token_owner():  # noqa: ASYNC110 - another process's doing
                await asyncio.sleep(0.005)

    async def seen(self, name: str) -> Pod:
        """Waits until the plugin's view can say that the next call is this pod's."""
        pod = await self.pod(name)
        vendor = Nvidia(NvidiaConfig())
        counts = [len(shares) for shares in decode_shares(pod.annotations[TO_ALLOCATE_KEY], name) if shares][:1]

        def known() -> bool:
            found = self.plugin.view.find(counts, vendor)
            return found is not None and found.pod.metadata.resource_version == pod.metadata.resource_version

        await self.until(known, f"the plugin sees {name}")
        return pod


@asynccontextmanager
async def bench(folder: Path) -> AsyncIterator[Bench]:
    """A node without a plugin yet."""
    async with ApiServer() as api, await connected(api, folder) as client:
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        await client.request("POST", paths.NODES, msgspec.json.encode(body))
        made = Bench(folder, api, client)
        await made.kubelet.start()
        try:
            yield made
        finally:
            await made.close()
        wrong = [reason for reason, warning in made.events.kinds if warning is (reason in GOOD_NEWS)]
        assert wrong == [], "good news is no warning, all else is one"
