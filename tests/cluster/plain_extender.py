"""The leanest extender that decides nothing: any node, and a plain Binding. `official_extender` is the usual one.

python -m tests.cluster.plain_extender ACCESS-AS-JSON PORT CERT KEY [same-writes]

With `same-writes` it makes the four writes of `hami scheduler` and looks at nothing: what they alone cost.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
import sys
import time
from collections.abc import MutableMapping
from typing import Any

import aiohttp
import uvicorn

Scope = MutableMapping[str, Any]
EPOCH = "hami.io/bind-epoch"


class PlainExtender:
    """A bare ASGI application."""

    def __init__(self, access: dict[str, str], same_writes: bool) -> None:
        self._access = access
        self._same_writes = same_writes
        self._session: aiohttp.ClientSession | None = None
        self._turn = itertools.count()
        self._later: set[asyncio.Future[None]] = set()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        asked = json.loads(body) if body else {}
        answer = self._filter(asked) if scope["path"] == "/filter" else await self._bind(asked) if asked else {}
        payload = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": payload})

    async def close(self) -> None:
        """Ends its connections, once its events are written."""
        await asyncio.gather(*self._later)
        if self._session is not None:
            await self._session.close()

    def _filter(self, asked: dict[str, Any]) -> dict[str, Any]:
        names = asked["NodeNames"]
        return {"NodeNames": [names[next(self._turn) % len(names)]], "FailedNodes": {}, "Error": ""}

    async def _bind(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._session is None:
            tls = ssl.create_default_context(cafile=self._access["ca"])
            own = {"Authorization": f"Bearer {self._access['token']}"}
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=200), headers=own)
        pod, node = f"{asked['PodNamespace']}/pods/{asked['PodName']}", asked["Node"]
        metadata = {"name": asked["PodName"], "namespace": asked["PodNamespace"], "uid": asked["PodUID"]}
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": {"kind": "Node", "name": node},
        }
        if self._same_writes:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            token = {"hami.io/mutex.lock": f"{stamp},{asked['PodNamespace']},{asked['PodName']}", EPOCH: "nobody/0"}
            await self._write("PATCH", f"/api/v1/nodes/{node}", {"metadata": {"annotations": token}})
            binding["metadata"] = metadata | {"annotations": allocation(node)}
        failed = await self._write("POST", f"/api/v1/namespaces/{pod}/binding", binding)
        if self._same_writes:
            events = (self._event(metadata, reason) for reason in ("FilteringSucceed", "BindingSucceed"))
            self._later.update(map(asyncio.ensure_future, events))
        return {"Error": failed}

    async def _event(self, pod: dict[str, str], reason: str) -> None:
        name = f"{pod['name']}.{reason.lower()}"
        event = {"metadata": {"name": name, "namespace": pod["namespace"]}, "involvedObject": {"kind": "Pod"} | pod}
        told = {"reason": reason, "type": "Normal", "message": f"{reason} {pod['name']}"}
        await self._write("POST", f"/api/v1/namespaces/{pod['namespace']}/events", event | told)

    async def _write(self, method: str, path: str, body: dict[str, Any]) -> str:
        """What went wrong, empty if nothing did."""
        assert self._session is not None
        kind = {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
        url, data = self._access["server"] + path, json.dumps(body)
        async with self._session.request(method, url, data=data, headers=kind) as answer:
            text = await answer.text()
            return "" if answer.ok else text


def allocation(node: str) -> dict[str, str]:
    """A share of the node's first card, as the pods of the figures ask for it."""
    now, share = str(int(time.time())), f"GPU-{node}-0,NVIDIA,1600,10:;"
    devices = {f"hami.io/vgpu-devices-{which}": share for which in ("to-allocate", "allocated")}
    return {"hami.io/vgpu-node": node, "hami.io/vgpu-time": now, "hami.io/bind-phase": "allocating", **devices}


if __name__ == "__main__":
    uvicorn.run(
        PlainExtender(json.loads(sys.argv[1]), same_writes="same-writes" in sys.argv[5:]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        ssl_certfile=sys.argv[3],
        ssl_keyfile=sys.argv[4],
        log_level="warning",
        lifespan="off",
        timeout_keep_alive=120,
    )
