"""The plugin as a process in mode mig: killed while it makes an instance; the next one cleans up and serves."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hami.core.codec import decode_register, encode_mig_allocations
from hami.core.keys import BIND_PHASE, MIG_ALLOCATIONS, NODE_LOCK, PHASE_ALLOCATING, PHASE_SUCCESS, VGPU_NODE
from hami.core.token import encode_token
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.nvml.probe import MigInstanceFacts
from hami.nvml.simulated import SimulatedProbe, made_uuid
from hami.nvml.simulated_mig import mig_uuid
from hami.sim.cluster import SimCluster
from hami.vendors.nvidia.names import ALLOCATED_KEY, REGISTER_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.mig_node import reservation
from tests.deviceplugin.plugin_process import NODE, POD, allocatable, plugin_process, runs
from tests.nvml.mig_cards import MIG_CARDS

CARD = made_uuid(NODE, 0)


@asynccontextmanager
async def mig_process(folder: Path, cluster: SimCluster, **entry: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """`hami device-plugin` on a node with this `entry` in config.json, whose cards are those of profile.yaml."""
    config = folder / "config.json"
    config.write_text(json.dumps({"nodeconfig": [{"name": NODE, **entry}]}))
    cards = str(folder / "profile.yaml")
    async with plugin_process(folder, cluster, cards=cards, node_config=config) as process:
        yield process


def refused(pod: dict[str, Any]) -> bool:
    """Whether kube-scheduler has looked at the pod and found no node."""
    conditions = pod.get("status", {}).get("conditions", [])
    return any(each["type"] == "PodScheduled" and each["status"] == "False" for each in conditions)


async def hand_over(cluster: SimCluster, writer: KubeWriter, name: str) -> None:
    made = await cluster.apply({**POD, "metadata": {"name": name}})
    await writer.patch_node_annotations(NODE, {NODE_LOCK: encode_token("default", name, 1_800_000_000)})
    work = f"{CARD},NVIDIA,20096,43:;"
    annotations = {
        VGPU_NODE: NODE,
        BIND_PHASE: PHASE_ALLOCATING,
        TO_ALLOCATE_KEY: work,
        ALLOCATED_KEY: work,
        MIG_ALLOCATIONS: encode_mig_allocations([reservation(CARD, "3g.20gb", 0)]),
    }
    await writer.bind(
        "default", name, uid=made["metadata"]["uid"], resource_version="", node=NODE, annotations=annotations
    )


@pytest.mark.timeout(300)
async def test_a_sigkill_between_the_halves_of_an_instance() -> None:
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as temporary:
        folder = Path(temporary)
        profile = folder / "profile.yaml"
        profile.write_text(MIG_CARDS)
        async with SimCluster(directory=folder) as cluster, ApiClient(Access(cluster.base_url)) as client:
            writer = KubeWriter(client)
            kubelet = await cluster.add_node(NODE)

            async def until_instances(whole: list[bool]) -> None:
                """Waits until card 0 has these instances: True for whole ones, False for half made ones."""
                probe = SimulatedProbe(profile, NODE, cluster.plugin_dir(NODE) / "hami")
                async with asyncio.timeout(60):
                    while [bool(each.compute) for each in await instances(probe)] != whole:  # noqa: ASYNC110 - another process
                        await asyncio.sleep(0.01)

            async with mig_process(folder, cluster, operatingmode="mig") as process:
                node = await cluster.until(
                    f"/api/v1/nodes/{NODE}",
                    lambda node: allocatable(node) == "14" and REGISTER_KEY in node["metadata"].get("annotations", {}),
                )
                cards = decode_register(node["metadata"]["annotations"][REGISTER_KEY], "NVIDIA", "test")
                assert [(card.mode, card.slots) for card in cards] == [("mig", 7), ("mig", 7)]
                profile.write_text(MIG_CARDS + "faults: {mig_step_s: 2.0}\n")
                await hand_over(cluster, writer, "p1")
                await until_instances([False])
                os.kill(process.pid, signal.SIGKILL)
                await process.wait()
            await until_instances([False])
            profile.write_text(MIG_CARDS)
            await cluster.until(f"/api/v1/nodes/{NODE}", lambda node: allocatable(node) == "0")
            await cluster.until(
                "/api/v1/namespaces/default/pods/p1", lambda pod: pod["status"].get("phase") == "Failed"
            )
            async with mig_process(folder, cluster, operatingmode="mig"):
                await cluster.until(f"/api/v1/nodes/{NODE}", lambda node: allocatable(node) == "14")
                await until_instances([])
                await hand_over(cluster, writer, "p2")
                done = await cluster.until("/api/v1/namespaces/default/pods/p2", runs)
                assert done["metadata"]["annotations"][BIND_PHASE] == PHASE_SUCCESS
                served = [allocation.env["NVIDIA_VISIBLE_DEVICES"] for allocation in kubelet.allocations]
                assert served == [mig_uuid(CARD, 1, 0)]
                await client.request("DELETE", "/api/v1/namespaces/default/pods/p2", b'{"gracePeriodSeconds": 0}')
                await until_instances([])


async def instances(probe: SimulatedProbe) -> tuple[MigInstanceFacts, ...]:
    return (await probe.cards()).cards[0].mig_instances


@pytest.mark.timeout(300)
async def test_a_pod_of_another_scheduler_gets_a_static_device() -> None:
    """Strategy mixed from config.json: kubelet offers the profile, a plain scheduler places, no annotation anywhere."""
    one = "nvidia.com/mig-1g.5gb"
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as temporary:
        folder = Path(temporary)
        layout = "    count: 2\n    mig: true\n    mig_layout: [[3, 0], [1, 4]]\n"
        (folder / "profile.yaml").write_text(MIG_CARDS.replace("    count: 2\n", layout))
        async with SimCluster(directory=folder) as cluster:
            kubelet = await cluster.add_node(NODE)
            await cluster.start_scheduler()
            async with mig_process(folder, cluster, migstrategy="mixed"):
                await cluster.until(
                    f"/api/v1/nodes/{NODE}",
                    lambda node: node.get("status", {}).get("allocatable", {}).get(one) == "2",
                )
                for name in ("p1", "p2", "p3"):
                    limits = {"name": "main", "image": "none", "resources": {"limits": {one: "1"}}}
                    await cluster.apply({**POD, "metadata": {"name": name}, "spec": {"containers": [limits]}})
                for name in ("p1", "p2"):
                    pod = await cluster.until(f"/api/v1/namespaces/default/pods/{name}", runs)
                    assert not any(key.startswith("hami.io/") for key in pod["metadata"].get("annotations", {}))
                served = [allocation.env["NVIDIA_VISIBLE_DEVICES"] for allocation in kubelet.allocations]
                assert sorted(served) == sorted(mig_uuid(made_uuid(NODE, index), 11, 0) for index in (0, 1))
                waiting = await cluster.until("/api/v1/namespaces/default/pods/p3", refused)
                assert not waiting["spec"].get("nodeName"), "there are two devices only"
