"""Keeps the Node object and the lease of one kubelet up to date."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from hami.core.errors import TransportError
from hami.sim.client import MERGE, STRATEGIC, ApiClient
from hami.sim.errors import StatusError
from hami.sim.kubelet.node_object import lease, node_status
from hami.sim.objects import Obj, dig

_RETRY_S: Final = 0.2


class NodeReporter:
    """Writes at start, at every heartbeat, and when `due` is called."""

    def __init__(
        self,
        node: Obj,
        resources: Mapping[str, str],
        devices: Callable[[], dict[str, tuple[int, int]]],
        heartbeat_s: float,
    ) -> None:
        self._node, self._resources, self._devices = node, resources, devices
        self._name = str(node["metadata"]["name"])
        self._heartbeat_s = heartbeat_s
        self._due = asyncio.Event()

    def due(self) -> None:
        """Something about devices changed."""
        self._due.set()

    async def register(self, client: ApiClient) -> None:
        """Create the Node, or take over the one of that name. Raises StatusError, TransportError."""
        status = node_status(self._resources, self._devices())
        try:
            await client.request("POST", "/api/v1/nodes", {**self._node, "status": status})
        except StatusError as error:
            if error.reason != "AlreadyExists":
                raise
            body = {"metadata": self._node["metadata"]}
            await client.request("PATCH", f"/api/v1/nodes/{self._name}", body, content_type=MERGE)
            await self._write_status(client)

    async def _write_status(self, client: ApiClient) -> None:
        path, status = f"/api/v1/nodes/{self._name}", node_status(self._resources, self._devices())
        node = await client.request("GET", path)
        before = {one["type"]: one for one in dig(node, "status", "conditions", default=[])}
        for condition in status["conditions"]:
            old = before.get(condition["type"], {})
            if old.get("status") == condition["status"]:
                condition["lastTransitionTime"] = old["lastTransitionTime"]
        await client.request("PATCH", f"{path}/status", {"status": status}, content_type=STRATEGIC)

    async def keep_status(self, client: ApiClient) -> None:
        """Until cancelled."""
        while True:
            # Not wait_for: before Python 3.12 it can swallow the cancellation that ends this task.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._heartbeat_s):
                    await self._due.wait()
            self._due.clear()
            try:
                await self._write_status(client)
            except (StatusError, TransportError):
                await asyncio.sleep(_RETRY_S)
                self._due.set()

    async def keep_lease(self, client: ApiClient) -> None:
        """Until cancelled."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self._name}"
        while True:
            body = lease(self._name)
            with contextlib.suppress(StatusError, TransportError):
                try:
                    await client.request("PATCH", path, {"spec": body["spec"]}, content_type=MERGE)
                except StatusError as error:
                    if error.code != 404:
                        raise
                    await client.request("PUT", path, body)
            await asyncio.sleep(self._heartbeat_s)
