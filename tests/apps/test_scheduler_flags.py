"""Flags of `hami scheduler` that change what it writes, seen at the API server (issue 6)."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from hami.core import keys
from tests.apps.rig import NVIDIA, Rig, node, pod, rigged

ALLOCATION = {keys.VGPU_NODE, keys.VGPU_TIME, NVIDIA.allocated_key, NVIDIA.to_allocate_key}


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path) as found:
        yield found


@pytest.mark.parametrize("announced", [True, False])
async def test_patch_in_filter_writes_the_allocation_before_the_answer(rig: Rig, announced: bool) -> None:
    await rig.cluster.apply(node("n1"))
    replica = await rig.replica(*(["--patch-in-filter"] if announced else []))
    await rig.cluster.apply(pod("p"))
    answer = await rig.call(replica, "filter", {"Pod": await rig.the_pod("p"), "NodeNames": ["n1"]})
    assert answer["NodeNames"] == ["n1"]
    written = (await rig.the_pod("p"))["metadata"].get("annotations") or {}
    assert ALLOCATION & written.keys() == (ALLOCATION if announced else set())
    if announced:
        assert written[keys.VGPU_NODE] == "n1"
        assert written[NVIDIA.allocated_key] == written[NVIDIA.to_allocate_key]


@pytest.mark.parametrize(
    ("flags", "environment", "taken"),
    [
        ([], {}, False),
        (["--node-lock-timeout=5s"], {}, True),
        ([], {"HAMI_NODELOCK_EXPIRE": "5s"}, True),
        (["--node-lock-timeout=5m"], {"HAMI_NODELOCK_EXPIRE": "5s"}, False),
        (["--node-lock-timeout=5s"], {"HAMI_NODELOCK_EXPIRE": "5m"}, True),
    ],
    ids=["neither", "flag", "environment", "flag over environment, long", "flag over environment, short"],
)
async def test_a_token_expires_by_flag_and_by_environment(
    rig: Rig, flags: list[str], environment: dict[str, str], taken: bool
) -> None:
    """The token of a pod that is alive and unbound, 60 seconds old."""
    await rig.cluster.apply(pod("owner"))
    written = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=60)
    token = f"{written:%Y-%m-%dT%H:%M:%SZ},default,owner"
    locked = node("n1")
    locked["metadata"]["annotations"][keys.NODE_LOCK] = token
    await rig.cluster.apply(locked)
    patience = "60s" if taken else "1s"
    replica = await rig.replica(f"--node-lock-retry-timeout={patience}", *flags, environment=environment)
    await rig.cluster.apply(pod("p"))
    created = await rig.the_pod("p")
    assert (await rig.call(replica, "filter", {"Pod": created, "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
    bind = {"PodName": "p", "PodNamespace": "default", "PodUID": created["metadata"]["uid"], "Node": "n1"}
    error = (await rig.call(replica, "bind", bind))["Error"]
    assert (error == "") is taken, error
    assert bool((await rig.the_pod("p"))["spec"].get("nodeName")) is taken


@pytest.mark.parametrize("legacy", [True, False])
async def test_metric_names_before_2_9(rig: Rig, legacy: bool) -> None:
    await rig.cluster.apply(node("n1", cards=1))
    flags = ["--metrics-bind-address=127.0.0.1:0", f"--legacy-metrics={str(legacy).lower()}"]
    replica = await rig.replica(*flags)
    async with aiohttp.ClientSession() as session, session.get(f"{replica.listeners[-1].url}/metrics") as answer:
        page = await answer.text()
    assert 'hami_gpu_memory_limit_bytes{device_index="0"' in page
    assert ('GPUDeviceMemoryLimit{deviceidx="0"' in page) is legacy
