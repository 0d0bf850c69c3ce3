"""Upstream's writes, byte for byte, from tests/golden/interop, sent to an API server (spec/node 2.6 to 2.8, 3.3;
spec/scheduler 2.1 to 2.7, 5).

In paths and bodies `$node.version` and `$pod.uid` are what the object has by then, `$card` is the test's card. The
bodies `$node.locked:TEXT` and `$node.unlocked` are the whole node with its lock set or gone: releases up to 2.4.1
update nodes instead of patching them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hami.kube.client import ApiClient

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "interop"
LOCK = "hami.io/mutex.lock"
NODE = "/api/v1/nodes/n1"
POD = "/api/v1/namespaces/default/pods/p"
Obj = dict[str, Any]


def golden(name: str) -> Obj:
    found: Obj = json.loads((GOLDEN / f"{name}.json").read_text())
    return found


class Player:
    """Sends the steps of one golden file; `card` is the id behind `$card`."""

    def __init__(self, client: ApiClient, name: str, card: str = "") -> None:
        self._client = client
        self._card = card
        self._steps = golden(name)

    async def play(self, part: str) -> None:
        """Every step of a part, such as `bind`, in order."""
        for step in self._steps[part]:
            body = await self._body(step["body"])
            await self._client.request(step["method"], step["path"], body, step["type"])

    async def _body(self, text: str) -> bytes:
        if text.startswith("$node."):
            return json.dumps(await self._whole_node(text)).encode()
        if "$node.version" in text:
            text = text.replace("$node.version", (await get(self._client, NODE))["metadata"]["resourceVersion"])
        if "$pod.uid" in text:
            text = text.replace("$pod.uid", (await get(self._client, POD))["metadata"]["uid"])
        return text.replace("$card", self._card).encode()

    async def _whole_node(self, text: str) -> Obj:
        node = await get(self._client, NODE)
        annotations = node["metadata"].setdefault("annotations", {})
        if text.startswith("$node.locked:"):
            annotations[LOCK] = text.removeprefix("$node.locked:")
        else:
            annotations.pop(LOCK, None)
        return node


async def get(client: ApiClient, path: str) -> Obj:
    found: Obj = json.loads(await client.request("GET", path))
    return found


async def annotations_of(client: ApiClient, path: str) -> dict[str, str]:
    found: dict[str, str] = (await get(client, path))["metadata"].get("annotations") or {}
    return found
