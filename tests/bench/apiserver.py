"""A stand-in for kube-apiserver that costs little itself: `python -m tests.bench.apiserver SCENE SCALE SEED CORE`.

Objects are JSON made beforehand, in the size that real ones have; pages are cut from them. It serves what a scheduler
asks of it: lists in pages, watches, the token PATCH, Bindings and events. `POST /bench/pods` adds a pending pod,
`POST /bench/churn?RATE` sets how many pod events a second the watch brings. Prints one JSON line with its port and
serves until its standard input closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.bench.grown import grown_node, grown_pod
from tests.bench.scenes import Scale, bound_pod, scenes
from tests.reference.model import Object

NODES, PODS = "/api/v1/nodes", "/api/v1/pods"
EMPTY = ("/api/v1/resourcequotas",)


class Store:
    """Objects by key, as JSON text, and the open watches of each kind."""

    def __init__(self, nodes: Iterable[Object], pods: Iterable[Object]) -> None:
        self.texts: dict[str, list[bytes]] = {NODES: [], PODS: [_text(pod) for pod in pods]}
        self.node_at: dict[str, int] = {}
        for node in nodes:
            self.node_at[node["metadata"]["name"]] = len(self.node_at)
            self.texts[NODES].append(_text(node))
        self.pending: dict[str, Object] = {}
        self.watches: dict[str, list[asyncio.StreamWriter]] = {NODES: [], PODS: []}
        self._versions = itertools.count(1000)

    def page(self, kind: str, limit: int, start: int) -> bytes:
        """A page of a list; with limit 0 the whole."""
        texts = self.texts.get(kind, [])
        end = start + limit if limit else len(texts)
        mark = f'"continue":"{end}",' if end < len(texts) else ""
        head = f'{{"kind":"List","apiVersion":"v1","metadata":{{{mark}"resourceVersion":"999"}},"items":['
        return head.encode() + b",".join(texts[start:end]) + b"]}"

    def tell(self, kind: str, event: str, item: Object) -> None:
        """Sends one watch event."""
        line = json.dumps({"type": event, "object": item}).encode() + b"\n"
        for watch in self.watches[kind]:
            watch.write(b"%x\r\n%b\r\n" % (len(line), line))

    def versioned(self, item: Object) -> Object:
        item["metadata"]["resourceVersion"] = str(next(self._versions))
        return item

    def patch_node(self, name: str, patch: Object) -> Object:
        """A merge patch of annotations."""
        at = self.node_at[name]
        node: Object = json.loads(self.texts[NODES][at])
        notes = node["metadata"]["annotations"]
        for key, value in patch["metadata"].get("annotations", {}).items():
            notes.pop(key, None) if value is None else notes.update({key: value})
        self.texts[NODES][at] = _text(self.versioned(node))
        self.tell(NODES, "MODIFIED", node)
        return node

    def bind(self, name: str, binding: Object) -> None:
        """The pod gets its node and the Binding's annotations; its plugin takes the token off at once."""
        pod = self.pending.pop(name)
        node = binding["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(binding["metadata"].get("annotations", {}))
        pod["spec"]["nodeName"] = node
        self.tell(PODS, "MODIFIED", self.versioned(pod))
        self.patch_node(node, {"metadata": {"annotations": {"hami.io/mutex.lock": None}}})


def _text(item: Object) -> bytes:
    return json.dumps(item, separators=(",", ":")).encode()


class Api:
    """The routes."""

    def __init__(self, store: Store, scale: Scale, seed: int) -> None:
        self._store = store
        self._scale = scale
        self._seed = seed
        self._churn: asyncio.Task[None] | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.split(" ", 2)
                length = next(
                    (int(line[15:]) for line in head.lower().split("\r\n") if line[:15] == "content-length:"), 0
                )
                body = await reader.readexactly(length) if length else b""
                url = urlsplit(target)
                query = {key: values[0] for key, values in parse_qs(url.query).items()}
                if "watch" in query:
                    await self._watch(url.path, query, reader, writer)
                    continue
                status, answer = self._answer(method, url.path, query, body)
                writer.write(_head(status, f"Content-Length: {len(answer)}") + answer)
                await writer.drain()
        writer.close()

    async def _watch(
        self, kind: str, query: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if "sendInitialEvents" in query:
            answer = b'{"kind":"Status","code":422,"reason":"Invalid","message":"sendInitialEvents is not served"}'
            writer.write(_head(422, f"Content-Length: {len(answer)}") + answer)
            return
        writer.write(_head(200, "Transfer-Encoding: chunked"))
        watches = self._store.watches.setdefault(kind, [])
        watches.append(writer)
        try:
            await reader.read(1)
        finally:
            watches.remove(writer)
        raise ConnectionError("the watch was given up")

    def _answer(self, method: str, path: str, query: dict[str, str], body: bytes) -> tuple[int, bytes]:
        store = self._store
        parts = path.split("/")
        if method == "GET" and (path in (NODES, PODS) or path in EMPTY):
            return 200, store.page(path, int(query.get("limit", 0)), int(query.get("continue", 0)))
        if method == "PATCH" and path.startswith(NODES):
            return 200, _text(store.patch_node(parts[-1], json.loads(body)))
        if method == "POST" and path.endswith("/binding"):
            store.bind(parts[-2], json.loads(body))
            return 201, b'{"kind":"Status","apiVersion":"v1","status":"Success","code":201}'
        if method == "POST" and path.endswith("/events"):
            return 201, body
        if method == "GET" and path.startswith(NODES):
            return 200, store.texts[NODES][store.node_at[parts[-1]]]
        if path == "/bench/pods":
            pod = store.versioned(json.loads(body))
            store.pending[pod["metadata"]["name"]] = pod
            store.tell(PODS, "ADDED", pod)
            return 200, b"{}"
        if path == "/bench/churn":
            self._set_churn(float(query["rate"]))
            return 200, b"{}"
        if method == "GET" and parts[-1] in store.pending:
            return 200, _text(store.pending[parts[-1]])
        return 404, b'{"kind":"Status","code":404,"reason":"NotFound","message":"not served here"}'

    def _set_churn(self, events_per_s: float) -> None:
        if self._churn is not None:
            self._churn.cancel()
        self._churn = asyncio.ensure_future(self._come_and_go(events_per_s)) if events_per_s else None

    async def _come_and_go(self, events_per_s: float) -> None:
        """Bound pods are added and deleted in turn, `events_per_s` of both together."""
        rng = Random(self._seed + 3)
        clock = asyncio.get_running_loop()
        due = clock.time()
        for number in itertools.count(self._scale.pods):
            pod = grown_pod(bound_pod(rng, number, 0, self._scale))
            for event in ("ADDED", "DELETED"):
                self._store.tell(PODS, event, self._store.versioned(pod))
                due += 1 / events_per_s
                await asyncio.sleep(max(0.0, due - clock.time()))


def _head(status: int, header: str) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{header}\r\n\r\n".encode()


async def _main(scene_name: str, scale: Scale, seed: int) -> None:
    scene = next(item for item in scenes(scale) if item.name == scene_name)
    store = Store(map(grown_node, scene.nodes(seed)), map(grown_pod, scene.pods(seed)))
    server = await asyncio.start_server(Api(store, scale, seed).serve, "127.0.0.1", 0, limit=4 * 1024 * 1024)
    facts: dict[str, Any] = {
        "port": server.sockets[0].getsockname()[1],
        "node_bytes": len(store.texts[NODES][0]),
        "pod_bytes": len(store.texts[PODS][0]),
    }
    print(json.dumps(facts), flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    name, size, given_seed, core = sys.argv[1:5]
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    asyncio.run(_main(name, Scale(*map(int, size.split("x"))), int(given_seed)))
