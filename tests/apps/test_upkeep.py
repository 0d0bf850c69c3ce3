"""A running scheduler takes device configurations that change, and writes nothing that is not its own (issues 6, 8)."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from hami.apps.scheduler import Scheduler
from hami.core import keys
from tests.apps.certified import SELF_MADE, World
from tests.apps.rig import MERGE, Obj, Rig, node, value
from tests.tools.waiting import until_answered

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
RENAMED = "nvidia: {resourceCountName: corp.com/gpu, resourceMemoryName: corp.com/mem, defaultMemory: 512}"


def asking(name: str, **limits: str) -> Obj:
    resources = {key.replace("__", "/").replace("_", "."): text for key, text in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": resources}}]},
    }


async def placed(rig: Rig, replica: Scheduler, pod: Obj) -> list[str] | None:
    """Nodes that `/filter` answers with."""
    answer = await rig.call(replica, "filter", {"Pod": pod, "NodeNames": ["n1"]})
    found: list[str] | None = answer["NodeNames"]
    return found


async def scheduler_of(rig: Rig, replica: Scheduler, pod: Obj) -> str:
    """The scheduler that the webhook gives a pod; empty if it leaves it alone."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "namespace": "default", "object": pod},
    }
    response = (await rig.call(replica, "webhook", review))["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if response.get("patch") else []
    return next((each["value"] for each in patch if each["path"] == "/spec/schedulerName"), "")


class Source:
    """Where the device configuration comes from."""

    def __init__(self, rig: Rig, folder: Path, kind: str) -> None:
        self._rig = rig
        self._file = folder / "device-config.yaml"
        self.kind = kind

    async def flags(self) -> list[str]:
        if self.kind == "file":
            return []
        body = {"metadata": {"name": "hami-device"}, "data": {"device-config.yaml": "nvidia: {deviceSplitCount: 10}"}}
        await self._rig.client.request("POST", CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **body})
        return ["--device-config-map=kube-system/hami-device"]

    async def write(self, text: str) -> None:
        if self.kind == "file":
            await asyncio.to_thread(self._file.write_text, text)
        else:
            body = {"data": {"device-config.yaml": text}}
            await self._rig.client.request("PATCH", f"{CONFIG_MAPS}/hami-device", body, content_type=MERGE)


@pytest.mark.parametrize("kind", ["file", "ConfigMap"])
async def test_another_device_configuration_holds_without_a_restart(rig: Rig, tmp_path: Path, kind: str) -> None:
    """Renamed resources: webhook, filter, registration and default of memory follow together."""
    source = Source(rig, tmp_path, kind)
    offered = node("n1", cards=1)
    offered["status"]["allocatable"] |= {"corp.com/gpu": "10", "nvidia.com/gpu": "10"}
    await rig.cluster.apply(offered)
    replica = await rig.replica(*await source.flags())
    old, new = asking("old", nvidia_com__gpu="1"), asking("new", corp_com__gpu="1")
    assert await scheduler_of(rig, replica, old) == "hami-scheduler"
    assert await scheduler_of(rig, replica, new) == ""
    applied = value("hami_scheduler_device_config_reloads_total", outcome="applied")

    await source.write(RENAMED)
    await rig.until(
        lambda: value("hami_scheduler_device_config_reloads_total", outcome="applied") > applied,
        "another configuration",
    )
    assert await scheduler_of(rig, replica, new) == "hami-scheduler"
    assert await scheduler_of(rig, replica, old) == ""
    assert await placed(rig, replica, new) == ["n1"]
    claim = replica.world.ledger.get("uid-new")
    assert claim is not None
    assert [use.memory_mib for _, use in claim.charges] == [512], "the new default of memory"

    refused = value("hami_scheduler_device_config_reloads_total", outcome="refused")
    await source.write("nvidia: {defaultMemry: 5}")
    await rig.until(
        lambda: value("hami_scheduler_device_config_reloads_total", outcome="refused") > refused, "a refusal"
    )
    assert value("hami_scheduler_device_config_current") == 0
    assert await scheduler_of(rig, replica, new) == "hami-scheduler", "the last good one is in force"
    if kind == "ConfigMap":
        await until_answered(lambda: config_map_told(rig), "an event on the ConfigMap")

    await source.write("nvidia: {deviceSplitCount: 10}")
    await rig.until(lambda: value("hami_scheduler_device_config_current") == 1, "a good one")
    assert await scheduler_of(rig, replica, old) == "hami-scheduler"
    assert await scheduler_of(rig, replica, new) == ""


async def config_map_told(rig: Rig) -> bool:
    events = (await rig.get("/api/v1/namespaces/kube-system/events"))["items"]
    return any(
        event["reason"] == keys.EVENT_INVALID_CONFIGURATION
        and event["involvedObject"]["kind"] == "ConfigMap"
        and "nvidia.defaultMemry: unknown key; did you mean defaultMemory?" in event["message"]
        for event in events
    )


async def test_pods_that_were_refused_are_tried_again_under_other_rules(rig: Rig, tmp_path: Path) -> None:
    await rig.cluster.apply(node("n1", cards=1))
    source = Source(rig, tmp_path, "file")
    replica = await rig.replica()
    too_much = asking("big", nvidia_com__gpu="1", nvidia_com__gpumem="100")
    await source.write("nvidia: {memoryFactor: 1000}")
    await until_answered(lambda: refused(rig, replica, too_much), "100 units of 1,000 MiB are more than the card has")
    await source.write("nvidia: {memoryFactor: 10}")
    await until_answered(lambda: woken(rig), "a node write that wakes refused pods")
    assert await placed(rig, replica, too_much) == ["n1"]


async def refused(rig: Rig, replica: Scheduler, pod: Obj) -> bool:
    answer = await rig.call(replica, "filter", {"Pod": pod, "NodeNames": ["n1"]})
    return not answer["NodeNames"]


async def woken(rig: Rig) -> bool:
    return keys.ROOM_FREED in (await rig.the_node("n1"))["metadata"]["annotations"]


# Certificates


async def test_objects_that_do_not_concern_us_are_never_written(world: World) -> None:
    """B56: 100 pods and 5 nodes without devices, two foreign objects of each followed kind, everything switched on."""
    rig = world.rig
    for number in range(5):
        plain = node(f"cpu{number}")
        plain["metadata"]["annotations"] = {}
        await rig.cluster.apply(plain)
    for number in range(100):
        spec = {"containers": [{"name": "c", "image": "none"}], "nodeName": f"cpu{number % 5}"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}
        await rig.client.request("POST", "/api/v1/namespaces/default/pods", body)
    for name in ("foreign", "hami-device"):
        data = {"device-config.yaml": "nvidia: {deviceSplitCount: 10}"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        await rig.client.request("POST", CONFIG_MAPS, body)
    await world.replica(*SELF_MADE, "--device-config-map=kube-system/hami-device")
    await until_answered(lambda: world.bundle(), "a published bundle")
    applied = value("hami_scheduler_device_config_reloads_total", outcome="applied")
    body = {"data": {"device-config.yaml": "nvidia: {defaultMemory: 1}"}}
    await rig.client.request("PATCH", f"{CONFIG_MAPS}/hami-device", body, content_type=MERGE)
    await rig.until(
        lambda: value("hami_scheduler_device_config_reloads_total", outcome="applied") > applied, "kopf at work"
    )
    writes = [each for each in rig.api.seen if each.verb not in ("get", "list", "watch")]
    ours = [each for each in writes if "hami-sim" not in each.user_agent]
    assert {(each.verb, each.resource, each.name) for each in ours} <= {
        ("create", "secrets", ""),
        ("create", "secrets", "tls"),
        ("patch", "mutatingwebhookconfigurations", "hami-webhook"),
    }
    assert ours, "the scheduler's own writes are seen"
