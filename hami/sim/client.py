"""A small API client for the stand-ins: JSON requests and informers. Our own processes have theirs in hami.kube."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from typing import Any, Final

import aiohttp
import msgspec

from hami.core.errors import TransportError
from hami.sim.errors import StatusError
from hami.sim.objects import Obj, object_key

MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
_RETRY_S: Final = 0.2
_LINE_LIMIT: Final = 4 * 1024 * 1024

Handler = Callable[[Obj | None, Obj | None], None]
"""Called with (old, new): old None is an addition, new None a deletion."""


class ApiClient:
    """Requests to one API server under one user agent. Close it after use.

    `tls` holds the authority and the client certificate for a real kube-apiserver.
    """

    def __init__(self, base_url: str, user_agent: str, tls: ssl.SSLContext | None = None) -> None:
        self.base_url = base_url
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls) if tls else None,
            headers={"User-Agent": user_agent},
            read_bufsize=_LINE_LIMIT,
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def close(self) -> None:
        await self._session.close()

    async def request(
        self, method: str, path: str, body: Any = None, *, content_type: str = "application/json", timeout_s: float = 10
    ) -> Obj:
        """The decoded answer. Raises StatusError on a refusal, TransportError where no answer came."""
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method,
                self.base_url + path,
                data=data,
                headers={"Content-Type": content_type},
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as response:
                answer: Obj = msgspec.json.decode(await response.read())
                if response.status >= 400:
                    raise StatusError.from_status({"code": response.status, **answer})
                return answer
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise TransportError(f"{method} {path}: {error!r}") from error

    async def watch(self, path: str, query: str, handle: Callable[[str, Obj], None]) -> None:
        """Feed every event to `handle` until the stream ends. Raises StatusError on an ERROR event, TransportError."""
        try:
            async with self._session.get(f"{self.base_url}{path}?watch=true&{query}") as response:
                if response.status >= 400:
                    raise StatusError.from_status(msgspec.json.decode(await response.read()))
                async for line in response.content:
                    event = msgspec.json.decode(line)
                    if event["type"] == "ERROR":
                        raise StatusError.from_status(event["object"])
                    handle(event["type"], event["object"])
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise TransportError(f"watch {path}: {error!r}") from error


class Informer:
    """A cache of one collection, kept by list and watch; `run` it as a task.

    `objects` is keyed by `namespace/name`. Handlers see every difference once, also those found by listing again.
    """

    def __init__(self, client: ApiClient, path: str, field_selector: str = "") -> None:
        self._client, self._path = client, path
        self._query = f"fieldSelector={field_selector}" if field_selector else ""
        self.objects: dict[str, Obj] = {}
        self.synced = asyncio.Event()
        self._handlers: list[Handler] = []
        self._version = ""

    def add_handler(self, handler: Handler) -> None:
        self._handlers.append(handler)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(TransportError):
                try:
                    if not self._version:
                        await self._list()
                    query = f"{self._query}&resourceVersion={self._version}&allowWatchBookmarks=true"
                    await self._client.watch(self._path, query, self._event)
                    continue
                except StatusError as error:
                    if error.code == 410:
                        self._version = ""
            await asyncio.sleep(_RETRY_S)

    async def _list(self) -> None:
        answer = await self._client.request("GET", f"{self._path}?{self._query}")
        fresh = {object_key(item): item for item in answer["items"]}
        for key in [key for key in self.objects if key not in fresh]:
            self._change(key, None)
        for key, obj in fresh.items():
            old = self.objects.get(key)
            if old is not None and old["metadata"]["uid"] != obj["metadata"]["uid"]:
                self._change(key, None)
            if old is None or old["metadata"]["resourceVersion"] != obj["metadata"]["resourceVersion"]:
                self._change(key, obj)
        self._version = answer["metadata"]["resourceVersion"]
        self.synced.set()

    def _event(self, event_type: str, obj: Obj) -> None:
        self._version = obj["metadata"]["resourceVersion"]
        if event_type != "BOOKMARK":
            self._change(object_key(obj), None if event_type == "DELETED" else obj)

    def _change(self, key: str, obj: Obj | None) -> None:
        old = self.objects.pop(key, None) if obj is None else self.objects.get(key)
        if obj is not None:
            self.objects[key] = obj
        if old is None and obj is None:
            return
        for handler in self._handlers:
            handler(old, obj)
