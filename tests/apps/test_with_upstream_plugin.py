"""Our scheduler with upstream's device plugin on the nodes (report: mixed releases, spec/scheduler 2.8)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from hami.core import keys
from tests.apps.rig import NVIDIA, Rig, node, pod, rigged
from tests.apps.upstream_plugin import LOCK, PHASE, TO_ALLOCATE, RefusedError, UpstreamPlugin

OLD = pytest.mark.parametrize("old", [False, True], ids=["2.10", "2.4.1"])


async def plugged(rig: Rig, *, old: bool = False) -> UpstreamPlugin:
    made = node("n1", cards=1)
    del made["metadata"]["annotations"]
    await rig.cluster.apply(made)
    plugin = UpstreamPlugin(rig, "n1", old=old)
    await plugin.register()
    return plugin


async def bound(rig: Rig, name: str) -> dict[str, Any]:
    return await rig.cluster.until(
        f"/api/v1/namespaces/default/pods/{name}", lambda found: bool(found.get("spec", {}).get("nodeName"))
    )


async def lock_of(rig: Rig) -> str:
    annotations: dict[str, str] = (await rig.the_node("n1"))["metadata"].get("annotations") or {}
    return annotations.get(LOCK, "")


@OLD
async def test_a_pod_is_handed_over(tmp_path: Path, old: bool) -> None:
    async with rigged(tmp_path) as rig:
        plugin = await plugged(rig, old=old)
        kube_scheduler = await rig.kube_scheduler(await rig.replica())
        try:
            await rig.cluster.apply(pod("p", 3000))
            found = await bound(rig, "p")
            annotations = found["metadata"]["annotations"]
            assert annotations[TO_ALLOCATE] == "GPU-0,NVIDIA,3000,0:;"
            assert annotations[PHASE] == "allocating"
            for key in ("hami.io/vgpu-time", "hami.io/bind-time"):
                assert re.fullmatch(r"[0-9]{10}", annotations[key])
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(Z|[+-]\d\d:\d\d),default,p", await lock_of(rig))
            assert await plugin.allocate(1) == ["GPU-0"]
            assert await lock_of(rig) == ""
            served = await rig.cluster.until(
                "/api/v1/namespaces/default/pods/p",
                lambda found: found["metadata"].get("labels", {}).get(keys.VGPU_NODE) == "n1",
            )
            assert served["metadata"]["annotations"][PHASE] == "success"
            assert served["metadata"]["annotations"][NVIDIA.allocated_key] == "GPU-0,NVIDIA,3000,0:;"
            await rig.cluster.apply(pod("q", 3000))
            await bound(rig, "q")
            assert (await rig.audit()).faults == []
        finally:
            await kube_scheduler.stop()


async def test_init_and_empty_containers_keep_their_places(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        plugin = await plugged(rig)
        kube_scheduler = await rig.kube_scheduler(await rig.replica())
        try:
            made = pod("p", 1000)
            first = made["spec"]["containers"][0]
            idle = {"name": "idle", "image": "none"}
            made["spec"]["initContainers"] = [{**idle, "name": "init"}]
            made["spec"]["containers"] = [first, idle, {**first, "name": "d"}]
            await rig.cluster.apply(made)
            found = await bound(rig, "p")
            share = "GPU-0,NVIDIA,1000,0:;"
            assert found["metadata"]["annotations"][TO_ALLOCATE] == f";{share};{share}"
            assert await plugin.allocate(1) == ["GPU-0"]
            assert (await rig.the_pod("p"))["metadata"]["annotations"][PHASE] == "allocating"
            assert (await lock_of(rig)).endswith(",default,p")
            assert await plugin.allocate(1) == ["GPU-0"]
            assert (await rig.the_pod("p"))["metadata"]["annotations"][PHASE] == "success"
            assert await lock_of(rig) == ""
        finally:
            await kube_scheduler.stop()


async def test_a_failed_allocate_frees_node_and_card(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        plugin = await plugged(rig)
        replica = await rig.replica()
        kube_scheduler = await rig.kube_scheduler(replica)
        try:
            await rig.cluster.apply(pod("p", 16000))
            await bound(rig, "p")
            with pytest.raises(RefusedError):
                await plugin.allocate(1, broken=True)
            assert await lock_of(rig) == ""
            path = "/api/v1/namespaces/default/pods/p/status"
            status = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}
            await rig.client.request("PATCH", path, status, content_type="application/merge-patch+json")
            await rig.cluster.apply(pod("q", 16000))
            await bound(rig, "q")
            assert await plugin.allocate(1) == ["GPU-0"]
            assert keys.VGPU_NODE not in (await rig.the_pod("p"))["metadata"].get("labels", {})
        finally:
            await kube_scheduler.stop()


@pytest.mark.parametrize(
    "allocated",
    ["GPU-0,NVIDIA,16000,0:;", "GPU-0,NVIDIA,16000,0:;,,0,0:;", "GPU-0[0-1],NVIDIA,16000,0:;"],
    ids=["plain", "2.4.1 placeholder", "2.5-2.9 slice id"],
)
async def test_pods_that_upstream_placed_hold_their_cards(tmp_path: Path, allocated: str) -> None:
    async with rigged(tmp_path) as rig:
        await plugged(rig)
        notes = {NVIDIA.allocated_key: allocated, TO_ALLOCATE: ";", PHASE: "success", "hami.io/vgpu-node": "n1"}
        made = pod("old", annotations={**notes, "hami.io/vgpu-time": "1700000000"})
        made["spec"]["nodeName"] = "n1"
        await rig.cluster.apply(made)
        replica = await rig.replica()
        await rig.cluster.apply(pod("p", 1000))
        ask = {"Pod": await rig.the_pod("p"), "NodeNames": ["n1"]}
        answer = await rig.call(replica, "filter", ask)
        assert "CardInsufficientMemory" in answer["FailedNodes"]["n1"]
