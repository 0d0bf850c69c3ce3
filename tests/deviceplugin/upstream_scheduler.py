"""Upstream's scheduler as nodes and pods see it, step by step (spec/scheduler 2.3, 2.5-2.9, 5)."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import msgspec

from hami.core.errors import ConflictError
from hami.core.objects import Pod, pod_decoder
from hami.kube import paths
from hami.kube.client import MERGE_PATCH
from tests.deviceplugin.bench import DEADLINE_S, NODE, Bench

LOCK = "hami.io/mutex.lock"
HANDSHAKE = "hami.io/node-handshake"
REGISTER = "hami.io/node-nvidia-register"
STAMP = "2026-08-21T10:00:00+08:00"
"""Upstream writes local time."""


class UpstreamScheduler:
    """Filter and bind of one release, for pods on the bench's node."""

    def __init__(self, node: Bench) -> None:
        self._bench = node

    async def create(self, name: str, *containers: str, init: tuple[str, ...] = ()) -> Pod:
        spec = {
            "containers": [{"name": each, "image": "none"} for each in containers or ("main",)],
            "initContainers": [{"name": each, "image": "none"} for each in init],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        made = await self._bench.client.request("POST", paths.pods_in("default"), msgspec.json.encode(body))
        return pod_decoder.decode(made)

    async def filter(self, pod: Pod, text: str, *, label: bool = True) -> None:
        """PATCH of the unbound pod, without any precondition; up to 2.4.1 without a label."""
        annotations = {
            "hami.io/vgpu-node": NODE,
            "hami.io/vgpu-time": "1787277600",
            "hami.io/vgpu-devices-to-allocate": text,
            "hami.io/vgpu-devices-allocated": text,
        }
        await self._patch(
            pod, {"annotations": annotations} | ({"labels": {"hami.io/vgpu-node": NODE}} if label else {})
        )

    async def bind(self, pod: Pod, *, lock: str | None = "") -> None:
        """Lock, phase, Binding. `lock` "" is this release's own text, None leaves the lock away (init-only pods)."""
        name = pod.metadata.name
        if lock is not None:
            await self._lock(lock or f"{STAMP},default,{name}")
        await self._patch(pod, {"annotations": {"hami.io/bind-phase": "allocating", "hami.io/bind-time": "1787277601"}})
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": "default", "uid": pod.metadata.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": NODE},
        }
        await self._send("POST", paths.binding("default", name), binding)

    async def _lock(self, text: str) -> None:
        """The node's lock, tried again while others write the node or still give their lock back."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                node = json.loads(await self._bench.client.request("GET", paths.node(NODE)))
                version = node["metadata"]["resourceVersion"]
                if LOCK not in (node["metadata"].get("annotations") or {}):
                    metadata = {"annotations": {LOCK: text}, "resourceVersion": version}
                    with suppress(ConflictError):
                        await self._send("PATCH", paths.node(NODE), {"metadata": metadata}, MERGE_PATCH)
                        return
                await asyncio.sleep(0.01)

    async def ask_for_life(self) -> None:
        """The stamp that schedulers of every release write over a handshake without `Requesting`."""
        metadata = {"annotations": {HANDSHAKE: "Requesting_2026.08.21 10:00:00"}}
        await self._send("PATCH", paths.node(NODE), {"metadata": metadata}, MERGE_PATCH)

    async def _patch(self, pod: Pod, metadata: dict[str, Any]) -> None:
        await self._send("PATCH", paths.pod("default", pod.metadata.name), {"metadata": metadata}, MERGE_PATCH)

    async def _send(self, method: str, path: str, body: dict[str, Any], content_type: str = "application/json") -> None:
        await self._bench.client.request(method, path, msgspec.json.encode(body), content_type)


def read_register_2_4_1(text: str) -> list[tuple[str, int, int, int, str, int, bool]]:
    """Exactly seven fields, each card ends with `:`."""
    assert ":" in text
    cards = []
    for piece in text.split(":"):
        if "," in piece:
            uuid, count, memory, cores, model, numa, health = piece.split(",")
            assert health in ("true", "false")
            cards.append((uuid, int(count), int(memory), int(cores), model, int(numa), health == "true"))
    return cards


def read_register_2_7(text: str) -> list[tuple[str, int, int, int, str, int, bool, int, str]]:
    """Exactly nine fields."""
    cards = []
    for piece in text.split(":"):
        if "," in piece:
            uuid, count, memory, cores, model, numa, health, index, mode = piece.split(",")
            cards.append(
                (uuid, int(count), int(memory), int(cores), model, int(numa), health == "true", int(index), mode)
            )
    return cards
