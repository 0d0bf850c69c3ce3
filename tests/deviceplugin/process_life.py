"""The plugin's process run within the test's, over the bench's API server and kubelet: settings, signals, pages."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import aiohttp

from hami.apps.device_plugin import Process, effective
from hami.config import device_plugin as plugin_config
from hami.core.codec import decode_register
from hami.core.errors import HamiError
from hami.vendors.nvidia.names import REGISTER_KEY
from tests.deviceplugin.bench import NODE, Bench


class Life:
    """One process in this one, over the bench's API server and kubelet."""

    def __init__(self, node: Bench, *flags: str) -> None:
        self.node = node
        self.config = node.folder / "etc/device-config.yaml"
        self.node_config = node.folder / "etc/node/config.json"
        self.node_config.parent.mkdir(parents=True, exist_ok=True)
        self.config.write_text("nvidia: {deviceSplitCount: 3}\n")
        self.write_node_config()
        # Bound and never listening: nobody else gets the port, and a listener that reuses addresses does.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port = self._reserved.getsockname()[1]
        self.flags = [
            f"--kubeconfig={node.folder}/kubeconfig", f"--node-name={NODE}", f"--device-config-file={self.config}",
            f"--node-config-file={self.node_config}", f"--kubelet-dir={node.kubelet.folder}",
            f"--hook-path={node.folder}/hook", f"--lock-dir={node.folder}/lock", f"--cdi-root={node.folder}/cdi",
            f"--nvml=sim:{node.profile}", f"--metrics-bind-address=127.0.0.1:{self.port}", *flags,
        ]  # fmt: skip
        self.task: asyncio.Task[None]

    def write_node_config(self, **entry: Any) -> None:
        temporary = self.node_config.with_suffix(".new")
        temporary.write_text(json.dumps({"nodeconfig": [{"name": NODE, **entry}]}))
        temporary.replace(self.node_config)

    def start(self) -> None:
        settings, _ = plugin_config.load(self.flags, {})
        self.task = asyncio.create_task(Process(settings, effective(settings)).run())
        self.task.add_done_callback(lambda _: self._reserved.close())

    async def get(self, path: str) -> tuple[int, str]:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.port}{path}") as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str) -> float:
        lines = (await self.get("/metrics"))[1].splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"hami_plugin_{name} ")))

    async def events(self) -> list[tuple[str, str]]:
        body = json.loads(await self.node.client.request("GET", "/api/v1/namespaces/default/events"))
        return [(event["reason"], event["message"]) for event in body["items"]]

    async def register_until(self, wanted: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(60):
            while True:
                text = (await self.node.node()).annotations.get(REGISTER_KEY, "")
                if text and wanted(decode_register(text, "NVIDIA", "test")):
                    return
                await asyncio.sleep(0.02)

    async def registrations(self, count: int) -> None:
        await self.node.until(lambda: len(self.node.kubelet.requests) >= count, f"{count} registrations")


@asynccontextmanager
async def living(node: Bench, *flags: str) -> AsyncIterator[Life]:
    life = Life(node, *flags)
    life.start()
    try:
        await life.registrations(1)
        await node.until(lambda: node.kubelet.devices, "the device list")
        yield life
    finally:
        life.task.cancel()
        with suppress(asyncio.CancelledError, HamiError):
            await life.task
