"""What a kubelet writes about pods: status, events, the final deletion."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Final

from hami.core.errors import TransportError
from hami.sim.client import STRATEGIC, ApiClient
from hami.sim.errors import StatusError
from hami.sim.objects import Obj, timestamp

_RETRY_S: Final = 0.2


def _path(pod: Obj) -> str:
    meta = pod["metadata"]
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"


class PodApi:
    """Writes for one node. A pod that is gone, or replaced under its name, is left alone."""

    def __init__(self, client: ApiClient, node_name: str) -> None:
        self._client, self._node_name = client, node_name

    async def patch_status(self, pod: Obj, status: Obj) -> None:
        """Until it is written or the pod is gone."""
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        await self._insist("PATCH", f"{_path(pod)}/status", body, STRATEGIC)

    async def delete(self, pod: Obj) -> None:
        """The end of a termination: grace 0, this uid only."""
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}}
        await self._insist("DELETE", _path(pod), body, "application/json")

    async def _insist(self, method: str, path: str, body: Obj, content_type: str) -> None:
        while True:
            try:
                await self._client.request(method, path, body, content_type=content_type)
                return
            except StatusError as error:
                if error.code in (404, 409):
                    return
            except TransportError:
                pass
            await asyncio.sleep(_RETRY_S)

    async def event(self, pod: Obj, event_type: str, reason: str, message: str) -> None:
        """One core/v1 event about the pod; lost where the API server does not take it."""
        meta, now = pod["metadata"], timestamp()
        body = {
            "metadata": {"name": f"{meta['name']}.{uuid.uuid4().hex[:16]}", "namespace": meta["namespace"]},
            "involvedObject": {
                "kind": "Pod",
                "apiVersion": "v1",
                "namespace": meta["namespace"],
                "name": meta["name"],
                "uid": meta["uid"],
                "resourceVersion": meta["resourceVersion"],
            },
            "type": event_type,
            "reason": reason,
            "message": message,
            "source": {"component": "kubelet", "host": self._node_name},
            "reportingComponent": "kubelet",
            "reportingInstance": self._node_name,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        with contextlib.suppress(StatusError, TransportError):
            await self._client.request("POST", f"/api/v1/namespaces/{meta['namespace']}/events", body)
