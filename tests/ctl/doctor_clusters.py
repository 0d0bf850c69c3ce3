"""Clusters for `hami doctor`: their objects, and what it finds in them."""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from hami.core.device_type import Registry
from hami.ctl.doctor.run import examine
from hami.ctl.doctor.show import Report
from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.tools.api_server import connected

REGISTRY: Registry = (Nvidia(NvidiaConfig()),)
REGISTER, HANDSHAKE, LOCK = "hami.io/node-nvidia-register", "hami.io/node-handshake", "hami.io/mutex.lock"
ALLOCATED, PHASE, BIND_TIME = "hami.io/vgpu-devices-allocated", "hami.io/bind-phase", "hami.io/bind-time"
CARDS = '[{"id":"GPU-a","count":2,"devmem":16384,"devcore":100,"type":"NVIDIA A100","mode":"hami-core","health":true}]'
Obj = dict[str, Any]


def node(annotations: Obj | None = None, offered: str | None = "2") -> Obj:
    status = {"allocatable": {"nvidia.com/gpu": offered}} if offered is not None else {}
    notes = {key: text for key, text in ({REGISTER: CARDS} | (annotations or {})).items() if text is not None}
    return {"kind": "Node", "metadata": {"name": "n1", "annotations": notes}, "status": status}


def pod(
    name: str, annotations: Obj | None = None, *, node_name: str = "n1", phase: str = "Running", **more: Any
) -> Obj:
    limits = {"nvidia.com/gpu": "1"}
    spec: Obj = {"containers": [{"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}]}
    spec |= {"nodeName": node_name} if node_name else {}
    metadata = {"name": name, "namespace": "default", "annotations": annotations or {}, **more}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def share(memory: int = 1000, cores: int = 0, card: str = "GPU-a") -> Obj:
    return {ALLOCATED: f"{card},NVIDIA,{memory},{cores}:;", PHASE: "success", "hami.io/vgpu-node": "n1"}


def ago(seconds: float) -> str:
    return str(int(time.time() - seconds))


def stamp(seconds: float) -> str:
    then = datetime.datetime.fromtimestamp(time.time() - seconds, datetime.UTC)
    return f"{then:%Y-%m-%dT%H:%M:%SZ}"


@asynccontextmanager
async def cluster(folder: Path, *objects: Obj) -> AsyncIterator[ApiClient]:
    async with ApiServer() as api, await connected(api, folder) as client:
        for each in objects:
            await create(client, each)
        yield client


async def create(client: ApiClient, document: Obj) -> None:
    places = {
        "Node": "/api/v1/nodes",
        "Pod": "/api/v1/namespaces/default/pods",
        "Service": "/api/v1/namespaces/default/services",
        "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    }
    path = places[document["kind"]]
    api_version = "admissionregistration.k8s.io/v1" if "Webhook" in document["kind"] else "v1"
    made = {"apiVersion": api_version, **document}
    await client.request("POST", path, msgspec.json.encode(made))
    if "status" in document:
        body = msgspec.json.encode({"status": document["status"]})
        name = f"{path}/{document['metadata']['name']}/status"
        await client.request("PATCH", name, body, "application/merge-patch+json")


async def examined(client: ApiClient, **options: Any) -> Report:
    return await examine(client, REGISTRY, second_look_s=0.0, **options)


def told(report: Report, *, webhook: bool = False) -> list[tuple[str, str, str]]:
    """Severity, check and subject; the webhook apart unless it is what is looked at."""
    return [
        (each.severity.value, each.check, each.subject)
        for each in report.findings
        if webhook or each.check not in ("webhook", "certificate")
    ]


def of_gone() -> str:
    """A token of a pod that does not exist."""
    return f"{stamp(10)},default,gone"
