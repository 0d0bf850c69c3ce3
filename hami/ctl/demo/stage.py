"""The demo's cluster: API server, kube-scheduler and kubelets are stand-ins; webhook, extender and plugins are ours."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from hami.certs import make
from hami.core.errors import HamiError
from hami.ctl.demo import ground
from hami.ctl.demo.processes import START_LIMIT_S, HamiProcess
from hami.kube.client import ApiClient
from hami.sim import profiles
from hami.sim.cluster import SimCluster
from hami.sim.containers.host import NodeHost
from hami.sim.containers.runner import ProcessRunner
from hami.sim.containers.toolkit import Toolkit
from hami.sim.kubelet.kubelet import Kubelet, KubeletConfig
from hami.sim.scheduler.config import ExtenderConfig, SchedulerConfig
from hami.sim.scheduler.scheduler import Scheduler
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia

SCHEDULER_NAME: Final = "hami-scheduler"
EXTENDER_TIMEOUT_S: Final = 30.0
WEBHOOK_TIMEOUT_S: Final = 10
CONTAINER_HOOK: Final = "/usr/local"
"""The hook path as containers see it; on this machine it is a folder of the demo."""
DEVICE_CONFIG: Final = "nvidia:\n  deviceSplitCount: 10\n"
NVIDIA: Final = Nvidia(NvidiaConfig())


class Stage:
    """Everything the tour needs. `async with Stage(hardware) as stage: …`; the folder goes when it ends.

    `toolkit`: what real containers are made with; None for simulated ones.
    """

    def __init__(self, hardware: Sequence[str], toolkit: Toolkit | None = None) -> None:
        self._hardware = hardware
        self._toolkit = toolkit
        self._exits = contextlib.AsyncExitStack()
        self._folder = Path()
        self.nodes: dict[str, str] = {}
        """Node name -> profile."""
        self.runners: dict[str, ProcessRunner] = {}
        """Node name -> its container runtime; empty where containers are simulated."""
        self.processes: list[HamiProcess] = []
        self.client: ApiClient
        self.scheduler_url = ""

    @property
    def kubeconfig(self) -> Path:
        """For kubectl and for our processes."""
        return self._cluster.kubeconfig

    @property
    def api_url(self) -> str:
        """Where the API server stand-in listens."""
        return self._cluster.base_url

    @property
    def logs(self) -> Path:
        """Folder of the processes' logs."""
        return self._folder / "logs"

    async def __aenter__(self) -> Stage:
        try:
            await self._start()
        except BaseException:
            await self._exits.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._exits.aclose()

    async def _start(self) -> None:
        self._folder = Path(self._exits.enter_context(tempfile.TemporaryDirectory(prefix="hami-demo-")))
        ground.check(self._folder, [_node_name(profile) for profile in self._hardware])
        self.logs.mkdir()
        (self._folder / "device-config.yaml").write_text(DEVICE_CONFIG)
        self._cluster = await self._exits.enter_async_context(SimCluster(directory=self._folder))
        self.client = await self._exits.enter_async_context(await ApiClient.load(str(self.kubeconfig)))
        await asyncio.gather(self._start_scheduler(), *(self._start_node(profile) for profile in self._hardware))
        self.processes.sort(key=lambda process: (process.name != "scheduler", process.name))
        await self._start_kube_scheduler()

    async def _start_scheduler(self) -> None:
        folder = self._folder / "certs"
        pair = make.make_pair(["127.0.0.1"], datetime.datetime.now(datetime.UTC), 365)
        make.write_pair(pair, folder)
        arguments = [
            "scheduler", "--kubeconfig", str(self.kubeconfig), "--http_bind", "https://127.0.0.1:0",
            "--cert_file", str(folder / make.CERT_FILE), "--key_file", str(folder / make.KEY_FILE),
            "--device-config-file", str(self._folder / "device-config.yaml"), "--scheduler-name", SCHEDULER_NAME,
            "--metrics-bind-address", "127.0.0.1:0", "--node-lock-retry-timeout", "25s",
        ]  # fmt: skip
        process = await self._launch("scheduler", arguments)
        line = await process.wait_for(lambda line: line.get("url", "").startswith("https://"))
        self.scheduler_url = line["url"]
        process.shown_command = process.shown_command.replace("https://127.0.0.1:0", self.scheduler_url)
        await process.wait_for(lambda line: line.get("event") == "synced")
        await self._install_webhook(pair.ca_pem)

    async def _install_webhook(self, ca_pem: bytes) -> None:
        webhook = {
            "name": "vgpu.hami.io",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
            "timeoutSeconds": WEBHOOK_TIMEOUT_S,
            "clientConfig": {
                "url": f"{self.scheduler_url}/webhook",
                "caBundle": base64.b64encode(ca_pem).decode(),
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                    "scope": "*",
                }
            ],
        }
        await self.post(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": "MutatingWebhookConfiguration",
                "metadata": {"name": "hami-webhook"},
                "webhooks": [webhook],
            },
        )

    async def _start_node(self, profile: str) -> None:
        name = _node_name(profile)
        if name in self.nodes:
            name = f"{name}-{len(self.nodes)}"
        self.nodes[name] = profile
        folder = self._folder / name
        for part in ("plugins", "cdi", "lock"):
            (folder / part).mkdir(parents=True)
        host = NodeHost(folder, name, profiles.load(profile))
        if self._toolkit is not None:
            host.install(self._toolkit, CONTAINER_HOOK)
            self.runners[name] = ProcessRunner(self._toolkit, host)
        config = KubeletConfig(name=name, directory=folder / "plugins", labels={"gpu": "on"})
        kubelet = Kubelet(self.api_url, config, self.runners.get(name))
        self._exits.push_async_callback(kubelet.stop)  # before its start, which Ctrl-C may cut short
        await kubelet.start()
        arguments = [
            "device-plugin", "--kubeconfig", str(self.kubeconfig), "--node-name", name,
            "--device-config-file", str(self._folder / "device-config.yaml"), "--kubelet-dir", str(folder / "plugins"),
            "--hook-path", str(host.hook_path), "--container-hook-path", CONTAINER_HOOK,
            "--cdi-root", str(folder / "cdi"), "--lock-dir", str(folder / "lock"), "--nvml", f"sim:{host.profile_file}",
        ]  # fmt: skip
        process = await self._launch(f"device-plugin {name}", arguments)
        await self._wait_registered(name, process)

    async def _wait_registered(self, name: str, process: HamiProcess) -> None:
        path = f"/api/v1/nodes/{name}"
        try:
            async with asyncio.timeout(START_LIMIT_S):
                while process.ended is None:
                    node = msgspec.json.decode(await self.client.request("GET", path))
                    allocatable = node.get("status", {}).get("allocatable", {})
                    annotations = node["metadata"].get("annotations", {})
                    if annotations.get(NVIDIA.register_key) and allocatable.get(NVIDIA.count_resource, "0") != "0":
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            text = f"{process.name}: no shares on {name} within {START_LIMIT_S:g} s: {process.last_words()}"
            raise HamiError(text) from error
        await process.wait_for(lambda _: False)

    async def _start_kube_scheduler(self) -> None:
        resources = frozenset(NVIDIA.managed_resources)
        extender = ExtenderConfig(
            url_prefix=self.scheduler_url, managed=resources, ignored=resources, http_timeout_s=EXTENDER_TIMEOUT_S
        )
        config = SchedulerConfig(scheduler_names=("default-scheduler", SCHEDULER_NAME), extenders=(extender,))
        scheduler = Scheduler(self.api_url, config)
        self._exits.push_async_callback(scheduler.stop)
        await scheduler.start()

    async def _launch(self, name: str, arguments: Sequence[str]) -> HamiProcess:
        process = HamiProcess(name, arguments, self.logs / f"{name.replace(' ', '-')}.log")
        self._exits.push_async_callback(process.stop)
        await process.start()
        self.processes.append(process)
        return process

    async def get(self, path: str) -> Any:
        """One object or list as plain data. Raises ApiError, TransportError."""
        return msgspec.json.decode(await self.client.request("GET", path))

    async def post(self, path: str, document: dict[str, Any]) -> Any:
        """Creates an object. Raises ApiError, TransportError."""
        return msgspec.json.decode(await self.client.request("POST", path, msgspec.json.encode(document)))


def _node_name(profile: str) -> str:
    return f"node-{Path(profile).stem.lower()}"
