"""An extender that does the least: any node, and a plain Binding. What a real one is compared with.

python -m tests.cluster.plain_extender ACCESS-AS-JSON PORT CERT KEY
"""

from __future__ import annotations

import itertools
import json
import ssl
import sys
from typing import Any

import aiohttp
import uvicorn

Scope = dict[str, Any]


class PlainExtender:
    """A bare ASGI application."""

    def __init__(self, access: dict[str, str]) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None
        self._turn = itertools.count()

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

    def _filter(self, asked: dict[str, Any]) -> dict[str, Any]:
        names = asked["NodeNames"]
        return {"NodeNames": [names[next(self._turn) % len(names)]], "FailedNodes": {}, "Error": ""}

    async def _bind(self, asked: dict[str, Any]) -> dict[str, Any]:
        if self._session is None:
            tls = ssl.create_default_context(cafile=self._access["ca"])
            tls.load_cert_chain(self._access["cert"], self._access["key"])
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=tls, limit=200))
        target = {"apiVersion": "v1", "kind": "Node", "name": asked["Node"]}
        metadata = {"name": asked["PodName"], "namespace": asked["PodNamespace"], "uid": asked["PodUID"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        path = f"/api/v1/namespaces/{asked['PodNamespace']}/pods/{asked['PodName']}/binding"
        async with self._session.post(self._access["server"] + path, json=binding) as answer:
            return {"Error": "" if answer.status == 201 else await answer.text()}  # Created


if __name__ == "__main__":
    uvicorn.run(
        PlainExtender(json.loads(sys.argv[1])),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        ssl_certfile=sys.argv[3],
        ssl_keyfile=sys.argv[4],
        log_level="warning",
        lifespan="off",
        timeout_keep_alive=120,
    )
