"""Our scheduler over upstream's plugin: what we write is what it reads, what it writes is what we read.

The plugin's writes are golden files, one for each way that a release has of writing them; ours are one more.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hami.core.keys import VGPU_NODE
from hami.kube.client import ApiClient
from tests.apps.rig import NVIDIA, Rig, node, pod, rigged
from tests.interop.steps import LOCK, NODE, POD, Obj, Player, annotations_of, get, golden

RELEASES = ("2.10.0", "2.7.1", "2.4.1")
PATTERNS = {"$unix": r"1[0-9]{9}", "$stamp": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"}


def two_containers(name: str) -> Obj:
    """The first with 3000 MiB and 30 % of a card, the second without."""
    made = pod(name, 3000)
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    made["spec"]["containers"] = [
        {"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}},
        {"name": "d", "image": "none"},
    ]
    return made


def assert_as_golden(written: dict[str, str], expected: dict[str, str]) -> None:
    """Exactly these keys; exactly these bytes, times apart."""
    assert written.keys() == expected.keys()
    for key, text in expected.items():
        pattern = re.escape(text)
        for name, times in PATTERNS.items():
            pattern = pattern.replace(re.escape(name), times)
        assert re.fullmatch(pattern, written[key]), (key, written[key], text)


@asynccontextmanager
async def under_upstreams_plugin(folder: Path, release: str) -> AsyncIterator[tuple[Rig, ApiClient, Player]]:
    """A node that upstream's plugin has registered, and our scheduler at work."""
    async with rigged(folder) as rig, await ApiClient.load(str(rig.cluster.kubeconfig), qps=0) as client:
        made = node("n1")
        del made["metadata"]["annotations"]
        await rig.cluster.apply(made)
        player = Player(client, f"upstream-plugin-{release}")
        await player.play("register")
        replica = await rig.replica()
        kube_scheduler = await rig.kube_scheduler(replica)
        try:
            await rig.cluster.apply(two_containers("p"))
            await rig.cluster.until(POD, lambda found: bool(found.get("spec", {}).get("nodeName")))
            yield rig, client, player
            assert await rig.differences(replica) == []
        finally:
            await kube_scheduler.stop()


@pytest.mark.parametrize("release", RELEASES)
async def test_we_write_what_it_reads_and_read_what_it_writes(tmp_path: Path, release: str) -> None:
    async with under_upstreams_plugin(tmp_path, release) as (rig, client, plugin):
        ours = golden("our-scheduler")
        assert_as_golden(await annotations_of(client, POD), ours["pod"])
        assert_as_golden({LOCK: (await annotations_of(client, NODE))[LOCK]}, ours["node"])
        await plugin.play("serve")
        assert LOCK not in await annotations_of(client, NODE)
        served = await rig.cluster.until(POD, lambda found: found["metadata"].get("labels", {}).get(VGPU_NODE) == "n1")
        assert served["metadata"]["annotations"][NVIDIA.allocated_key] == ours["pod"][NVIDIA.allocated_key]
        await rig.cluster.apply(two_containers("q"))
        await rig.cluster.until(
            "/api/v1/namespaces/default/pods/q", lambda found: bool(found.get("spec", {}).get("nodeName"))
        )
        second = await annotations_of(client, "/api/v1/namespaces/default/pods/q")
        assert second[NVIDIA.allocated_key] == "GPU-0,NVIDIA,3000,30:;;", "spread; the higher NUMA node came first"


@pytest.mark.parametrize("release", RELEASES)
async def test_a_pod_that_it_failed_gives_node_and_card_back(tmp_path: Path, release: str) -> None:
    async with under_upstreams_plugin(tmp_path, release) as (rig, client, plugin):
        await plugin.play("fail")
        assert LOCK not in await annotations_of(client, NODE)
        status = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}
        await rig.client.request("PATCH", f"{POD}/status", status, content_type="application/merge-patch+json")
        await rig.cluster.apply(two_containers("q"))
        await rig.cluster.until(
            "/api/v1/namespaces/default/pods/q", lambda found: bool(found.get("spec", {}).get("nodeName"))
        )
        assert VGPU_NODE not in (await get(client, POD))["metadata"].get("labels", {})


async def test_the_register_is_read_whole() -> None:
    """Every field of each form: a card that is left out or misread would show here."""
    cards = {}
    for release in RELEASES:
        (step,) = golden(f"upstream-plugin-{release}")["register"]
        text = json.loads(step["body"])["metadata"]["annotations"][NVIDIA.register_key]
        cards[release] = NVIDIA.decode_register(text, release)
    for release, found in cards.items():
        rows = [
            (each.id, each.index, each.slots, each.memory_mib, each.core_percent, each.numa, each.healthy, each.mode)
            for each in found
        ]
        second = 0 if release == "2.4.1" else 1
        assert rows == [
            ("GPU-0", 0, 10, 16384, 100, 0, True, "hami-core"),
            ("GPU-1", second, 10, 16384, 100, 1, True, "hami-core"),
        ], release
