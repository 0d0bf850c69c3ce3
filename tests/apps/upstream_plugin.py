"""Upstream's device plugin as the API server sees it, step by step (spec/node 2.6-2.8, spec/scheduler 2.5-2.7)."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

from hami.sim.errors import StatusError
from tests.apps.rig import MERGE, Obj, Rig

LOCK = "hami.io/mutex.lock"
PHASE = "hami.io/bind-phase"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
REGISTER = "hami.io/node-nvidia-register"
HANDSHAKE = "hami.io/node-handshake"
_LOCK_TRIES = 5


class RefusedError(Exception):
    """Allocate answered with this error."""


class UpstreamPlugin:
    """One node's plugin. `old` plays 2.4.1: text register, `Reported` stamps, empty segments dropped."""

    def __init__(self, rig: Rig, node: str, *, old: bool = False) -> None:
        self._rig = rig
        self._node = node
        self._old = old
        self._word = "GPU" if old else "NVIDIA"
        self._path = f"/api/v1/nodes/{node}"

    async def register(self) -> None:
        """One round of the registration loop."""
        if self._old:
            now = datetime.datetime.now(datetime.UTC)
            text = "GPU-0,10,16384,100,NVIDIA-Tesla V100-PCIE-16GB,0,true:"
            stamp = f"Reported {now:%Y-%m-%d %H:%M:%S.%f}031 +0000 UTC m=+1104711.777"
            await self._rig.annotate(self._path, {REGISTER: text, HANDSHAKE: stamp})
            return
        text = (
            '[{"id":"GPU-0","count":10,"devmem":16384,"devcore":100,"type":"NVIDIA A100","mode":"hami-core",'
            '"health":true}]'
        )
        await self._rig.annotate(self._path, {REGISTER: text})

    async def allocate(self, count: int, *, broken: bool = False) -> list[str]:
        """Kubelet's call for `count` device ids of one container; the card ids that it is given."""
        pod = await self._pending_pod()
        if broken:
            await self._fail(pod)
            raise RefusedError("broken as told")
        segments = pod["metadata"]["annotations"][TO_ALLOCATE].split(";")
        if self._old:
            segments = [segment for segment in segments if segment]
        place = next((at for at, segment in enumerate(segments) if _devices(segment)), None)
        if place is None or len(_devices(segments[place])) != count:
            await self._fail(pod)
            raise RefusedError("device number not matched")
        devices = _devices(segments[place])
        segments[place] = ""
        # The trailing `;` is one more empty segment when split, and is written out again (spec/node 2.7).
        await self._patch_pod(pod, {TO_ALLOCATE: "".join(segment + ";" for segment in segments)})
        fresh = await self._get_pod(pod)
        if self._word not in fresh["metadata"]["annotations"][TO_ALLOCATE]:
            await self._patch_pod(fresh, {PHASE: "success"})
            await self._release(fresh)
        return devices

    async def _pending_pod(self) -> Obj:
        node = await self._rig.the_node(self._node)
        lock = (node["metadata"].get("annotations") or {}).get(LOCK)
        if lock is not None and not self._old:
            stamp, namespace, name = lock.split(",")
            datetime.datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S%z")
            return await self._rig.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        phases = ("allocating",) if self._old else ("allocating", "success")
        listed: list[Obj] = (await self._rig.get(f"/api/v1/pods?fieldSelector=spec.nodeName={self._node}"))["items"]
        for pod in listed:
            notes = pod["metadata"].get("annotations") or {}
            here = notes.get("hami.io/vgpu-node") == self._node and "hami.io/bind-time" in notes
            if pod["status"]["phase"] == "Pending" and here and notes.get(PHASE) in phases:
                return pod
        raise RefusedError(f"no binding pod found on node {self._node}")

    async def _fail(self, pod: Obj) -> None:
        await self._patch_pod(pod, {PHASE: "failed"})
        await self._release(pod)

    async def _release(self, pod: Obj) -> None:
        for _ in range(_LOCK_TRIES):
            node = await self._rig.the_node(self._node)
            lock = (node["metadata"].get("annotations") or {}).get(LOCK)
            owner = f",{pod['metadata']['namespace']},{pod['metadata']['name']}"
            if lock is None or ("," in lock and not lock.endswith(owner) and not self._old):
                return
            body = {"metadata": {"annotations": {LOCK: None}, "resourceVersion": node["metadata"]["resourceVersion"]}}
            try:
                await self._rig.client.request("PATCH", self._path, body, content_type=MERGE)
            except StatusError:
                await asyncio.sleep(0.01)
            else:
                return

    async def _patch_pod(self, pod: Obj, annotations: dict[str, str | None]) -> None:
        await self._rig.annotate(_path(pod), annotations)

    async def _get_pod(self, pod: Obj) -> Obj:
        return await self._rig.get(_path(pod))


def _path(pod: Obj) -> str:
    return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"


def _devices(segment: str) -> list[str]:
    """Card ids of one container's segment: four fields each, an empty id is no device."""
    found: list[Any] = [piece.split(",") for piece in segment.split(":") if "," in piece]
    for fields in found:
        assert len(fields) >= 4, "pod annotation format error, missing fields, do not use nodeName in task spec"
        int(fields[2]), int(fields[3])
    return [str(fields[0]) for fields in found if fields[0]]
