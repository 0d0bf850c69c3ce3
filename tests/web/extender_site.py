"""An extender over a small world, spoken to as kube-scheduler does."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hami.core.admission import Admission
from hami.core.model import Policies
from hami.core.objects import Node, Pod
from hami.placement.engine import Engine
from hami.placement.world import World
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from hami.web import app, asgi
from hami.web.extender import Extender
from hami.web.webhook import Webhook
from tests.web.asgi_client import Reply, call

REGISTER = (
    '[{"id":"GPU-a","count":10,"devmem":16384,"devcore":100,"type":"NVIDIA A100","health":true},'
    '{"id":"GPU-b","index":1,"count":10,"devmem":16384,"devcore":100,"type":"NVIDIA A100","health":true}]'
)
KEYS = {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}


class Clock:
    """A clock that stands still."""

    def monotonic_s(self) -> float:
        return 1000.0

    def unix_s(self) -> float:
        return 1_790_000_000.0


class Binds:
    """Bind behind a gate, to see what a leaving client does."""

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.go = asyncio.Event()
        self.go.set()
        self.bound: list[tuple[str, str, str, str]] = []

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        await self.go.wait()
        self.bound.append((namespace, name, uid, node))
        return self.error


class Open:
    """A gate that is open, or opens later."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.event.set()
        self.refusal = ""

    async def wait_open(self) -> str:
        await self.event.wait()
        return self.refusal


class Events:
    """Keeps what was told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, bool, str, str]] = []

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        self.told.append((pod.key, warning, reason, message))


class Site:
    """The application over a world with one registered node."""

    def __init__(self, bind_error: str = "") -> None:
        self.world = World((Nvidia(NvidiaConfig()),), Policies(), Clock())
        self.world.on_node(node_view("n1"))
        self.binds = Binds(bind_error)
        self.gate = Open()
        self.events = Events()
        extender = Extender(Engine(self.world), self.binds, self.gate, self.events)
        self.app: asgi.App = app.build(extender, Webhook(lambda _pod, _namespace: Admission(True)), lambda: "")

    async def post(self, path: str, document: Any, **options: Any) -> Reply:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        return await call(self.app, path, body, **options)

    async def filter(self, document: Any, **options: Any) -> dict[str, Any]:
        reply = await self.post("/filter", document, **options)
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        answer: dict[str, Any] = json.loads(reply.body)
        assert set(answer) == KEYS
        return answer


def node_object(name: str, register: str = REGISTER) -> dict[str, Any]:
    annotations = {"hami.io/node-nvidia-register": register}
    status = {"allocatable": {"nvidia.com/gpu": "20"}}
    return {"metadata": {"name": name, "uid": name, "annotations": annotations}, "status": status}


def node_view(name: str) -> Node:
    import msgspec

    return msgspec.convert(node_object(name), Node)


def pod(uid: str = "u1", **limits: int) -> dict[str, Any]:
    resources = {"limits": {f"nvidia.com/{name}": str(value) for name, value in limits.items()}}
    metadata = {"name": f"p-{uid}", "namespace": "default", "uid": uid, "resourceVersion": "5"}
    return {"metadata": metadata, "spec": {"containers": [{"name": "c", "resources": resources}]}}
