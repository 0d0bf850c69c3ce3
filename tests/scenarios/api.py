"""A small JSON client and a watcher, for either API server. They share nothing with hami's own client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from tests.cluster.processes import PATIENCE_S

Object = dict[str, Any]
MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
NOT_FOUND, CONFLICT, ERROR = 404, 409, 400
RETRY_S = 0.2


class ApiError(Exception):
    """The API server answered with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status} {message}")
        self.status = status
        self.message = message


class Api:
    """Requests with one identity; close it after use."""

    def __init__(self, server: str, tls: ssl.SSLContext | None = None) -> None:
        self._server = server
        connector = aiohttp.TCPConnector(ssl=tls, limit=0) if tls else aiohttp.TCPConnector(limit=0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """The decoded answer. Raises ApiError with the server's message."""
        payload = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        timeout = aiohttp.ClientTimeout(total=PATIENCE_S)
        url = self._server + path
        async with self._session.request(method, url, data=payload, headers=headers, timeout=timeout) as response:
            answer = json.loads(await response.read())
            if response.status >= ERROR:
                raise ApiError(response.status, str(answer.get("message", answer)))
            return answer

    async def get(self, path: str) -> Any:
        """GET an object or list."""
        return await self.call("GET", path)

    async def post(self, path: str, body: Object) -> Any:
        """Create an object."""
        return await self.call("POST", path, body)

    async def patch(self, path: str, body: Object) -> Any:
        """JSON merge patch."""
        return await self.call("PATCH", path, body, MERGE)

    async def annotate(self, path: str, annotations: Mapping[str, str | None]) -> Any:
        """Set annotations; None removes one."""
        return await self.patch(path, {"metadata": {"annotations": dict(annotations)}})

    async def delete(self, path: str, grace_s: int = 0) -> None:
        """Delete an object or collection; a missing one is fine."""
        try:
            await self.call("DELETE", f"{path}?gracePeriodSeconds={grace_s}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def stream(self, path: str) -> Any:
        """The response of a watch, as a context manager."""
        return self._session.get(self._server + path)


class Watcher:
    """Objects of one collection of the whole cluster, by namespace and uid, and a bell for each change."""

    def __init__(self, api: Api, path: str) -> None:
        self._api, self._path = api, path
        self._objects: dict[str, dict[str, Object]] = {}
        self._bells: dict[str, list[asyncio.Event]] = {}
        self.synced = asyncio.Event()

    def of(self, namespace: str) -> list[Object]:
        """The namespace's objects."""
        return list(self._objects.get(namespace, {}).values())

    def attach(self, namespace: str, bell: asyncio.Event) -> None:
        """Ring the bell whenever something in the namespace changes."""
        self._bells.setdefault(namespace, []).append(bell)

    def detach(self, namespace: str) -> None:
        """Forget the namespace."""
        self._bells.pop(namespace, None)
        self._objects.pop(namespace, None)

    async def run(self) -> None:
        """Until cancelled; a watch that ends begins again with a list."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                await self._follow()
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        listed = await self._api.get(self._path)
        self._objects = {}
        for found in listed["items"]:
            self._take("ADDED", found)
        self.synced.set()
        version = listed["metadata"]["resourceVersion"]
        async with self._api.stream(f"{self._path}?watch=true&resourceVersion={version}") as response:
            rest = b""
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return
                    self._take(event["type"], event["object"])

    def _take(self, kind: str, found: Object) -> None:
        metadata = found["metadata"]
        namespace = metadata.get("namespace", "")
        if kind == "DELETED":
            self._objects.get(namespace, {}).pop(metadata["uid"], None)
        elif kind in ("ADDED", "MODIFIED"):
            self._objects.setdefault(namespace, {})[metadata["uid"]] = found
        for bell in self._bells.get(namespace, ()):
            bell.set()
