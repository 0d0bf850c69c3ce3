"""The scheduler's HTTP side over a world in memory: what kube-apiserver and kube-scheduler send, byte by byte."""

from __future__ import annotations

import base64
import functools
import json
from typing import Any

import jsonpatch
import msgspec

from hami.core import admission
from hami.core.admission import AdmissionSettings
from hami.core.budgets import DisruptionBudget, budget_decoder
from hami.core.device_type import Refusal
from hami.core.model import Policies
from hami.core.objects import Pod, node_decoder, pod_decoder, quota_decoder
from hami.placement.all_fits import AllFits
from hami.placement.engine import Engine
from hami.placement.preemptable import PreemptableFilters
from hami.placement.preemption import Preemption
from hami.placement.world import World
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from hami.web import app
from hami.web.extender import Extender
from hami.web.verbs import Verbs
from hami.web.webhook import Webhook
from tests.placement.fakes import FakeClock
from tests.web.asgi_client import Reply, call

Object = dict[str, Any]
MODEL = "NVIDIA A100-SXM4-80GB"
SIDECAR: Object = {"restartPolicy": "Always"}
PLACES = ("app", "second", "init", "sidecar", "requests")
"""Where `placed` may put a container."""


class Site:
    """One scheduler. `pods` are what the API server knows of (for preemption's reads), `told` the events."""

    def __init__(
        self,
        config: NvidiaConfig | None = None,
        settings: AdmissionSettings | None = None,
        *,
        all_feasible: bool = False,
        preempt: bool = False,
        policies: Policies | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.world = World((Nvidia(config),), policies or Policies(), self.clock)
        self.pods: dict[str, Object] = {}
        self.budgets: list[Object] = []
        self.told: list[str] = []
        filters = PreemptableFilters(Engine(self.world), self.world, enabled=preempt)
        every_fit = AllFits(self.world, filters)
        extender = Extender(filters, self, self, self, every_fit, always_every_fit=all_feasible)
        verbs = Verbs(self, every_fit, Preemption(self.world, self) if preempt else None)
        review = functools.partial(
            admission.review,
            registry=self.world.registry,
            settings=settings or AdmissionSettings(),
            quota=self._advise,
        )
        self.app = app.build(extender, Webhook(review), lambda: "", verbs.routes())

    # What the API server shows

    def node(
        self,
        name: str,
        *cards: Object,
        allocatable: int | None = 100,
        notes: dict[str, str] | None = None,
        ready: str = "True",
    ) -> None:
        """`notes`: annotations beside the register of `cards`, or in its place."""
        register = json.dumps(list(cards or (card(f"GPU-{name}"),)))
        annotations = {"hami.io/node-nvidia-register": register, **(notes or {})}
        offered = {} if allocatable is None else {"nvidia.com/gpu": str(allocatable)}
        conditions = [{"type": "MemoryPressure", "status": "Unknown"}, {"type": "Ready", "status": ready}]
        status = {"allocatable": offered, "conditions": conditions}
        body = {"metadata": {"name": name, "uid": name, "annotations": annotations}, "status": status}
        self.world.on_node(node_decoder.decode(json.dumps(body)), listed=True)

    def quota(self, name: str = "q", namespace: str = "default", **hard: str) -> None:
        keys = {key.replace("__", "/").replace("_", "."): value for key, value in hard.items()}
        body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"hard": keys}}
        self.world.quotas.apply(quota_decoder.decode(json.dumps(body)))

    def running(self, pod: Object, node: str, shares: str) -> None:
        """A pod on its node with this allocation."""
        notes = {**(pod["metadata"].get("annotations") or {}), "hami.io/vgpu-node": node}
        notes["hami.io/vgpu-devices-allocated"] = shares
        body = {**pod, "metadata": {**pod["metadata"], "annotations": notes}, "status": {"phase": "Running"}}
        body["spec"] = {**pod["spec"], "nodeName": node}
        self.pods[pod["metadata"]["uid"]] = body
        self.world.on_pod(typed(body))

    # What it asks

    async def filter(self, pod: Object, *names: str, query: str = "") -> Object:
        answer: Object = json.loads((await self.post("/filter", {"Pod": pod, "NodeNames": names}, query=query)).body)
        return answer

    async def post(self, path: str, document: object, *, query: str = "") -> Reply:
        return await call(self.app, path, json.dumps(document).encode(), query=query)

    async def create(self, pod: Object, namespace: str = "default", version: str = "v1") -> Object:
        """The review's response. With a patch, `pod` in it is the object after admission."""
        request = {"uid": "r", "operation": "CREATE", "namespace": namespace, "object": pod}
        review = {"apiVersion": f"admission.k8s.io/{version}", "kind": "AdmissionReview", "request": request}
        reply = await self.post("/webhook", review)
        assert reply.status == 200
        response: Object = json.loads(reply.body)["response"]
        patch = json.loads(base64.b64decode(response.get("patch", b"") or b"W10="))
        response["pod"] = jsonpatch.apply_patch(json.loads(json.dumps(pod)), patch)
        return response

    # Ports

    async def wait_open(self) -> str:
        return ""

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        return f"{namespace}/{name} {uid} {node} is not bound here"

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        self.told.append(f"{'Warning' if warning else 'Normal'} {reason} {pod.key}: {message}")

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        return [typed(pod) for pod in self.pods.values() if pod["spec"].get("nodeName") == node]

    async def list_disruption_budgets(self) -> list[DisruptionBudget]:
        return [budget_decoder.decode(json.dumps(each)) for each in self.budgets]

    def _advise(self, namespace: str, pod: Pod) -> Refusal | None:
        shape = self.world.shapes.of(pod)
        if isinstance(shape, Refusal):
            return None
        return self.world.quotas.advise(namespace, shape, slices_possible=self.world.columns.has_mig)


def card(uuid: str, **fields: object) -> Object:
    """One record of a JSON register."""
    base = {"id": uuid, "count": 10, "devmem": 16384, "devcore": 100, "type": MODEL, "mode": "hami-core"}
    return {**base, "health": True, **fields}


def gpu(name: str = "c", *, kind: str = "limits", **wishes: object) -> Object:
    """A container; `mem`, `cores`, `percent`, `gpu`, `priority` name resources."""
    short = {"mem": "gpumem", "cores": "gpucores", "percent": "gpumem-percentage"}
    asked = {f"nvidia.com/{short.get(key, key)}": value for key, value in wishes.items()}
    return {"name": name, "resources": {kind: asked} if asked else {}}


def pod(*containers: Object, name: str = "p", init: tuple[Object, ...] = (), **fields: Any) -> Object:
    """`annotations` and `labels` go into metadata, the rest into the spec."""
    meta: Object = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
    meta |= {key: fields.pop(key) for key in ("annotations", "labels") if key in fields}
    spec = {"containers": list(containers), **fields}
    return {"metadata": meta, "spec": spec | ({"initContainers": list(init)} if init else {})}


def typed(body: Object) -> Pod:
    return pod_decoder.decode(msgspec.json.encode(body))


def placed(container: Object, place: str) -> Object:
    """The pod with the container as app, init container, sidecar, or second app behind a plain one."""
    match place:
        case "app":
            return pod(container)
        case "second":
            return pod(gpu("plain"), container)
        case "init":
            return pod(gpu("app"), init=(container,))
        case "sidecar":
            return pod(gpu("app"), init=({**container, **SIDECAR},))
    return pod({**container, "resources": {"requests": container["resources"]["limits"]}})


async def refused(site: Site, body: Object, *words: str) -> None:
    """Asserts that the webhook refuses the pod with these words, and changes nothing."""
    response = await site.create(body)
    assert not response["allowed"], response
    assert response["status"]["code"] in (403, 500)
    message = response["status"]["message"]
    assert all(word in message for word in words), message
    assert "patch" not in response
