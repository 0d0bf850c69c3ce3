"""Pods and nodes for the kube-scheduler stand-in, and looks at what became of them."""

from __future__ import annotations

import asyncio
from typing import Any

from hami.sim.apiserver.kinds import EVENTS
from hami.sim.cluster import SimCluster
from hami.sim.objects import Obj, dig
from hami.sim.scheduler import ExtenderConfig, SchedulerConfig
from tests.sim.toys import GPU


def path(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}"


def bound(pod: Obj) -> bool:
    return bool(dig(pod, "spec", "nodeName"))


def scheduled_condition(pod: Obj) -> Obj:
    conditions = dig(pod, "status", "conditions", default=[])
    return next((one for one in conditions if one["type"] == "PodScheduled"), {})


def unschedulable(pod: Obj) -> bool:
    return scheduled_condition(pod).get("status") == "False"


def node(name: str, cpu: str = "8", gpus: int | None = None, **spec: Any) -> Obj:
    amounts = {"cpu": cpu, "memory": "32Gi", "pods": "110"}
    if gpus is not None:
        amounts[GPU] = str(gpus)
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": name}},
        "spec": spec,
        "status": {"capacity": amounts, "allocatable": amounts},
    }


def plain_pod(name: str, cpu: str = "1", **spec: Any) -> Obj:
    container = {"name": "main", "image": "i", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], **spec},
    }


FAST = {"initial_backoff_s": 0.05, "max_backoff_s": 0.2}


async def start(cluster: SimCluster, *extenders: ExtenderConfig, **changes: Any) -> None:
    await cluster.start_scheduler(SchedulerConfig(("default-scheduler", "hami-scheduler"), extenders, **FAST | changes))


async def until_event(cluster: SimCluster, name: str, reason: str) -> None:
    """Wait until the pod has an event of that reason."""
    subscription = cluster.api.store.subscribe(EVENTS, None)
    async with asyncio.timeout(60):
        while not any(reason == have for _, have, _ in await events(cluster, name)):
            await subscription.get()
    cluster.api.store.unsubscribe(EVENTS, subscription)


async def events(cluster: SimCluster, name: str) -> list[tuple[str, str, str]]:
    selector = f"involvedObject.name={name}"
    found = await cluster.client.request("GET", f"/api/v1/namespaces/default/events?fieldSelector={selector}")
    return [(one["type"], one["reason"], one["message"]) for one in found["items"]]
