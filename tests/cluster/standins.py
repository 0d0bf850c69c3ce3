"""Device plugins of many nodes that exist in the API only, played by one process, which also notes what it sees when.

    python -m tests.cluster.standins KUBECONFIG-AS-JSON RECORD

A pod that is bound with phase allocating is served `HAND_OFF_S` later, as upstream's plugin does it: work list erased,
phase success and the label in one PATCH of the pod, then the token taken off the node. On SIGTERM the record is
written: for each pod when it was bound, for each hand-off how long the token stood.
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

HAND_OFF_S = 0.2
RETRY_S = 0.1
TO_ALLOCATE, PHASE = "hami.io/vgpu-devices-to-allocate", "hami.io/bind-phase"
LOCK, CHOSEN = "hami.io/mutex.lock", "hami.io/vgpu-node"
MERGE = {"Content-Type": "application/merge-patch+json"}


class Meta(msgspec.Struct):
    name: str
    namespace: str = ""
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class Thing(msgspec.Struct):
    """A pod or a node."""

    metadata: Meta
    spec: Spec = msgspec.field(default_factory=Spec)


class News(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


decode_news = msgspec.json.Decoder(News).decode
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

    async def watch(self, kind: str) -> None:
        """Follows all pods or nodes from now on."""
        async with self._session.get(f"{self._server}/api/v1/{kind}?limit=1") as answer:
            version = (await answer.json())["metadata"]["resourceVersion"]
        print(f"watching {kind}", flush=True)
        query = f"watch=1&resourceVersion={version}&timeoutSeconds=3600"
        async with self._session.get(f"{self._server}/api/v1/{kind}?{query}") as answer:
            async for line in answer.content:
                news = decode_news(line)
                if news.type in ("ADDED", "MODIFIED"):
                    self._take(kind, decode_thing(news.object))

    def _take(self, kind: str, thing: Thing) -> None:
        meta = thing.metadata
        if kind == "nodes":
            self._follow_token(meta.name, meta.annotations.get(LOCK, ""))
        elif thing.spec.node_name:
            self.bound_at_s.setdefault(f"{meta.namespace}/{meta.name}", time.time())
            if meta.annotations.get(PHASE) == "allocating" and meta.name not in self._served:
                self._served.add(meta.name)
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
        await self._patch(f"/api/v1/namespaces/{meta.namespace}/pods/{meta.name}", changes)
        await self._patch(f"/api/v1/nodes/{node}", {"annotations": {LOCK: None}})

    async def _patch(self, path: str, metadata: dict[str, Any]) -> None:
        """Until it is done, as a plugin; a pod that is gone needs nothing."""
        body = json.dumps({"metadata": metadata})
        while True:
            try:
                async with self._session.patch(self._server + path, data=body, headers=MERGE) as answer:
                    if answer.status < HTTPStatus.BAD_REQUEST or answer.status == HTTPStatus.NOT_FOUND:
                        return
                    print(path, answer.status, await answer.text(), flush=True)
            except aiohttp.ClientError as error:
                print(path, error, flush=True)
            await asyncio.sleep(RETRY_S)


async def run(access: dict[str, str]) -> StandIns:
    """Until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    tls = ssl.create_default_context(cafile=access["ca"])
    tls.load_cert_chain(access["cert"], access["key"])
    connector = aiohttp.TCPConnector(ssl=tls, limit=200)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=2**20) as session:
        plugins = StandIns(session, access["server"])
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
    seen = asyncio.run(run(json.loads(sys.argv[1])))
    Path(sys.argv[2]).write_text(json.dumps({"bound_at_s": seen.bound_at_s, "hand_offs_s": seen.hand_offs_s}))
