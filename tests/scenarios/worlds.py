"""The two clusters that scenarios run in. Our own processes are the same real ones in both."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import ssl
import string
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from hami.certs import make
from hami.sim.cluster import SimCluster
from hami.sim.scheduler.config import load
from tests.cluster import build
from tests.cluster.components import BIND_MARGIN_S, HAMI, PROFILES, Cluster, node_entry
from tests.cluster.controlplane import MANIFESTS, SCHEDULER_NAME, ControlPlane
from tests.cluster.processes import PATIENCE_S, NotReadyError, Process, free_ports
from tests.scenarios.api import JSON_PATCH, Api, ApiError
from tests.scenarios.objects import REGISTER, VENDOR

SIM, REAL = "sim", "real"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
POLL_S = 0.05
BIND_TIMEOUT_S = 120
"""Binds wait longer for a token than any stalled machine keeps a scenario from its next step."""


class World:
    """One running cluster, whichever it is."""

    def __init__(self, name: str, api: Api, extender: Process, urls: tuple[str, str]) -> None:
        self.name = name
        self.api = api
        self.extender = extender
        self.extender_url, self.metrics_url = urls
        self.plugin_nodes: dict[str, str] = {}
        """Profile → node with kubelet stand-in and device plugin."""
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls))

    async def close(self) -> None:
        """Close connections."""
        await self._session.close()
        await self.api.close()

    async def _page(self, url: str) -> str | None:
        """Body of a page that answers 200, else None."""
        try:
            async with self._session.get(url) as response:
                return await response.text() if response.ok else None
        except (aiohttp.ClientError, ConnectionError):
            return None

    async def metrics(self) -> str:
        """What our scheduler knows now."""
        return await self._page(f"{self.metrics_url}/metrics") or ""

    async def kill_extender(self) -> None:
        """SIGKILL, as the kernel does it when memory runs out."""
        self.extender.kill()

    async def start_extender(self) -> None:
        """Start it again; returns when it is ready."""
        self.extender.start()
        await self.wait_extender()

    async def wait_extender(self) -> None:
        """Returns when `/readyz` says 200. Raises NotReadyError."""
        await until(self._is_ready, "the extender is ready")

    async def _is_ready(self) -> bool:
        self.extender.require_alive()
        return await self._page(f"{self.extender_url}/readyz") is not None

    async def set_failure_policy(self, policy: str) -> None:
        """Change the webhook's failure policy."""
        change = [{"op": "replace", "path": "/webhooks/0/failurePolicy", "value": policy}]
        await self.api.call("PATCH", f"{WEBHOOKS}/hami-webhook", change, JSON_PATCH)

    async def wait_plugin_node(self, name: str) -> list[str]:
        """Returns the ids of the node's cards by index, once they are registered and offered. Raises NotReadyError."""
        cards: list[dict[str, Any]] = []

        async def registered() -> bool:
            try:
                node = await self.api.get(f"/api/v1/nodes/{name}")
            except ApiError:
                return False
            text = (node["metadata"].get("annotations") or {}).get(REGISTER, "")
            offered = node.get("status", {}).get("allocatable", {}).get(f"{VENDOR}/gpu", "0")
            cards[:] = yaml.safe_load(text or "[]")
            return bool(cards) and offered != "0"

        await until(registered, f"cards of {name}")
        return [card["id"] for card in sorted(cards, key=lambda card: card.get("index", 0))]


async def until(true: Callable[[], Awaitable[bool]], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Returns once `true` says so. Raises NotReadyError at the deadline."""
    deadline = time.monotonic() + timeout_s
    while not await true():
        if time.monotonic() > deadline:
            raise NotReadyError(f"{what}: not so after {timeout_s:.0f} s")
        await asyncio.sleep(POLL_S)  # what is asked lies in other processes: no event of ours could tell


@contextlib.asynccontextmanager
async def sim(folder: Path, profiles: Sequence[str]) -> AsyncIterator[World]:
    """The embedded cluster with our scheduler and, for each profile, a node with our device plugin."""
    extender_port, metrics_port = free_ports(2)
    urls = (f"https://127.0.0.1:{extender_port}", f"http://127.0.0.1:{metrics_port}")
    certificates = make.make_pair(["127.0.0.1"], datetime.datetime.now(datetime.UTC), 30)
    make.write_pair(certificates, folder / "certs")
    async with SimCluster(directory=folder) as cluster, contextlib.AsyncExitStack() as exits:
        extender = Process(
            "hami-scheduler", _scheduler_command(folder, cluster.kubeconfig, urls), folder / "scheduler.log"
        )
        world = World(SIM, Api(cluster.base_url), extender, urls)
        exits.push_async_callback(world.close)
        exits.callback(extender.kill)
        extender.start()
        plugins = {}
        for profile in profiles:
            name = world.plugin_nodes[profile] = f"node-{profile}"
            plugins[name] = _plugin(folder, cluster.kubeconfig, name, profile)
            await cluster.add_node(name, labels={"gpu": "on"})
            exits.callback(plugins[name].kill)
            plugins[name].start()
        await world.wait_extender()
        await cluster.start_scheduler()
        await cluster.start_scheduler(load(_rendered(folder, "kube-scheduler.yaml", EXTENDER_URL=urls[0])))
        bundle = base64.b64encode(certificates.ca_pem).decode()
        webhook = _rendered(folder, "webhook.yaml", WEBHOOK_URL=f"{urls[0]}/webhook", CA_BUNDLE=bundle)
        await world.api.post(WEBHOOKS, yaml.safe_load(webhook.read_text()))
        for name in plugins:
            await world.wait_plugin_node(name)
        yield world


@contextlib.asynccontextmanager
async def real(folder: Path, profiles: Sequence[str]) -> AsyncIterator[World]:
    """etcd, kube-apiserver, kube-controller-manager and kube-schedulers with the same."""
    (metrics_port,) = free_ports(1)
    plane = ControlPlane(build.ensure(), folder, bind_timeout_s=BIND_TIMEOUT_S)
    cluster = Cluster(plane, ["--metrics-bind-address", f"127.0.0.1:{metrics_port}"])
    try:
        cluster.start()
        nodes = cluster.add_nodes(profiles) if profiles else []
        tls = ssl.create_default_context(cafile=str(plane.authority.cert))
        tls.load_cert_chain(plane.admin_pair.cert, plane.admin_pair.key)
        urls = (plane.extender_url, f"http://127.0.0.1:{metrics_port}")
        world = World(REAL, Api(plane.server, tls), cluster.scheduler.process, urls)
        world.plugin_nodes = {node.profile: node.name for node in nodes}
        try:
            yield world
        finally:
            await world.close()
    finally:
        cluster.stop()


WORLDS = {SIM: sim, REAL: real}


def _rendered(folder: Path, manifest: str, **values: str) -> Path:
    """A manifest of the real control plane with this cluster's addresses in it."""
    path = folder / manifest
    path.write_text(
        string.Template((MANIFESTS / manifest).read_text()).substitute(
            {"KUBECONFIG": "", "MAX_BACKOFF_S": "10", "BIND_TIMEOUT_S": str(BIND_TIMEOUT_S), **values}
        )
    )
    return path


def _scheduler_command(folder: Path, kubeconfig: Path, urls: tuple[str, str]) -> list[str]:
    """As `tests.cluster.components.HamiScheduler` has it."""
    address, metrics = (url.split("//")[1] for url in urls)
    command = [HAMI, "scheduler", "--kubeconfig", kubeconfig, "--http_bind", address]
    command += ["--cert_file", folder / "certs" / make.CERT_FILE, "--key_file", folder / "certs" / make.KEY_FILE]
    command += ["--scheduler-name", SCHEDULER_NAME, "--metrics-bind-address", metrics, "-v=3"]
    bind_wait = f"{BIND_TIMEOUT_S - BIND_MARGIN_S}s"
    command += ["--node-lock-retry-timeout", bind_wait, "--device-config-file", MANIFESTS / "device-config.yaml"]
    return [str(part) for part in command]


def _plugin(folder: Path, kubeconfig: Path, node: str, profile: str) -> Process:
    """`hami device-plugin` of a node; its kubelet stand-in has the sockets in the folder of the node's name."""
    home = folder / f"{node}-host"
    for part in ("hook", "cdi", "lock"):
        (home / part).mkdir(parents=True)
    (home / "config.json").write_text(json.dumps({"nodeconfig": [{"name": node, **node_entry(profile)}]}))
    own = PROFILES / f"{profile}.yaml"
    command = [HAMI, "device-plugin", "--kubeconfig", kubeconfig, "--node-name", node, "-v=3"]
    command += ["--device-config-file", MANIFESTS / "device-config.yaml", "--node-config-file", home / "config.json"]
    command += ["--kubelet-dir", folder / node, "--hook-path", home / "hook", "--cdi-root", home / "cdi"]
    command += ["--lock-dir", home / "lock", "--nvml", f"sim:{own if own.exists() else profile}"]
    return Process(f"plugin-{node}", [str(part) for part in command], folder / f"{node}-plugin.log")
