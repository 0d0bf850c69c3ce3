"""Device plugins of many nodes that exist in the API only, played by one process, which also notes what it sees when.

    python -m tests.cluster.standins ACCESS-AS-JSON RECORD

A pod that is bound with phase allocating is served `HAND_OFF_S` later, as a plugin does it: work list erased, phase
success and the label in one PATCH of the pod, then the pod's own token taken off the node. Each real plugin has had a
connection since it started, so these are opened before anything is measured. On SIGTERM the record is written: for
each pod when it was bound, for each hand-off how long the token stood.
"""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop

HAND_OFF_S = 0.2
RETRY_S = 0.1
CONNECTIONS = 32
KEEP_S = 600
TO_ALLOCATE, PHASE = "hami.io/vgpu-devices-to-allocate", "hami.io/bind-phase"
LOCK, CHOSEN = "hami.io/mutex.lock", "hami.io/vgpu-node"
LOCK_PATH = "/metadata/annotations/hami.io~1mutex.lock"
MERGE = {"Content-Type": "application/merge-patch+json"}
JSON_PATCH = {"Content-Type": "application/json-patch+json"}


class Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class Thing(msgspec.Struct):
    """A pod or a node; of a Status only its code is of interest."""

    metadata: Meta = msgspec.field(default_factory=Meta)
    spec: Spec = msgspec.field(default_factory=Spec)
    code: int = 0


class News(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: Thing


class Things(msgspec.Struct):
    """A list."""

    metadata: Meta
    items: list[Thing]


decode_news = msgspec.json.Decoder(News).decode
decode_things = msgspec.json.Decoder(Things).decode
decode_thing = msgspec.json.Decoder(Thing).decode


class StandIns:
    """All plugins."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server
        self._tasks: set[asyncio.Task[None]] = set()
        self._locked_at_s: dict[str, tuple[str, float]] = {}
        self._served: set[str] = set()
        self.bound_at_s: dict[str, float] = {}
        self.hand_offs_s: list[float] = []

    async def connect(self) -> None:
        """Opens the connections that plugins have."""
        await asyncio.gather(*(self._look() for _ in range(CONNECTIONS)))

    async def watch(self, kind: str) -> None:
        """Follows all pods or nodes, whatever happens to a single watch: a server ends those that fall behind."""
        version = await self._list(kind)
        print(f"watching {kind}", flush=True)
        while True:
            try:
                version = await self._follow(kind, version)
            except aiohttp.ClientError as error:
                print(kind, error, flush=True)
                await asyncio.sleep(RETRY_S)
            version = version or await self._list(kind)

    async def _look(self) -> None:
        async with self._session.get(f"{self._server}/readyz") as answer:
            await answer.read()

    async def _list(self, kind: str) -> str:
        """Takes what there is; the version to watch from."""
        async with self._session.get(f"{self._server}/api/v1/{kind}") as answer:
            found = decode_things(await answer.read())
        for thing in found.items:
            self._take(kind, thing)
        return found.metadata.resource_version

    async def _follow(self, kind: str, version: str) -> str:
        """One watch; the version to go on from, empty where only a list helps."""
        query = f"watch=1&allowWatchBookmarks=true&resourceVersion={version}&timeoutSeconds=3600"
        async with self._session.get(f"{self._server}/api/v1/{kind}?{query}") as answer:
            if answer.status == HTTPStatus.GONE:
                return ""
            answer.raise_for_status()
            async for line in answer.content:
                news = decode_news(line)
                if news.type == "ERROR":
                    print(kind, line, flush=True)
                    return ""
                version = news.object.metadata.resource_version or version
                if news.type in ("ADDED", "MODIFIED"):
                    self._take(kind, news.object)
        return version

    def _take(self, kind: str, thing: Thing) -> None:
        meta = thing.metadata
        if kind == "nodes":
            self._follow_token(meta.name, meta.annotations.get(LOCK, ""))
        elif thing.spec.node_name:
            self.bound_at_s.setdefault(f"{meta.namespace}/{meta.name}", time.time())
            if meta.annotations.get(PHASE) == "allocating" and meta.uid not in self._served:
                self._served.add(meta.uid)
                task = asyncio.ensure_future(self._serve(thing))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _follow_token(self, node: str, token: str) -> None:
        before = self._locked_at_s.get(node)
        if before is not None and before[0] != token:
            self.hand_offs_s.append(time.monotonic() - before[1])
            del self._locked_at_s[node]
        if token and node not in self._locked_at_s:
            self._locked_at_s[node] = (token, time.monotonic())

    async def _serve(self, pod: Thing) -> None:
        await asyncio.sleep(HAND_OFF_S)
        meta, node = pod.metadata, pod.spec.node_name
        erased = ";" * meta.annotations.get(TO_ALLOCATE, "").count(";")
        changes = {"annotations": {TO_ALLOCATE: erased, PHASE: "success"}, "labels": {CHOSEN: node}}
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}"
        await self._ask("PATCH", path, {"metadata": changes}, MERGE)
        await self._release(node, meta)

    async def _release(self, node: str, pod: Meta) -> None:
        """Takes the pod's own token off, whatever stands there by then. It is known from the watch, else read."""
        mine = f",{pod.namespace},{pod.name}"
        token = self._locked_at_s.get(node, ("", 0.0))[0]
        while True:
            if not token.endswith(mine):
                found = await self._ask("GET", f"/api/v1/nodes/{node}")
                token = decode_thing(found).metadata.annotations.get(LOCK, "") if found else ""
            if not token.endswith(mine):
                return
            test = {"op": "test", "path": LOCK_PATH, "value": token}
            changes = [test, {"op": "remove", "path": LOCK_PATH}]
            if await self._ask("PATCH", f"/api/v1/nodes/{node}", changes, JSON_PATCH):
                return
            token = ""

    async def _ask(self, method: str, path: str, changes: Any = None, kind: Any = None) -> bytes:
        """Until it is answered, as a plugin does; empty for what is not there, or not as the patch has it."""
        body = json.dumps(changes) if changes else None
        over = (HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY)
        while True:
            try:
                async with self._session.request(method, self._server + path, data=body, headers=kind) as answer:
                    text = await answer.read()
                    if answer.status < HTTPStatus.BAD_REQUEST:
                        return text
                    if answer.status in over:
                        return b""
                    print(path, answer.status, text, flush=True)
            except aiohttp.ClientError as error:
                print(path, error, flush=True)
            await asyncio.sleep(RETRY_S)


async def run(access: dict[str, str]) -> StandIns:
    """Until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    tls = ssl.create_default_context(cafile=access["ca"])
    connector = aiohttp.TCPConnector(ssl=tls, limit=CONNECTIONS + 2, keepalive_timeout=KEEP_S)
    timeout = aiohttp.ClientTimeout(total=None)
    # As whom our plugin writes: the API server keeps a list of each object's writers.
    own = {"User-Agent": "hami/stand-in", "Authorization": f"Bearer {access['token']}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20, headers=own) as session:
        plugins = StandIns(session, access["server"])
        await plugins.connect()
        watches = [asyncio.ensure_future(plugins.watch(kind)) for kind in ("pods", "nodes")]
        ending = asyncio.ensure_future(stopped.wait())
        await asyncio.wait((ending, *watches), return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            ended = next(watch for watch in watches if watch.done())
            raise SystemExit(f"a watch has ended: {ended.exception()!r}")
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return plugins


if __name__ == "__main__":
    seen = uvloop.run(run(json.loads(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps({"bound_at_s": seen.bound_at_s, "hand_offs_s": seen.hand_offs_s}))
