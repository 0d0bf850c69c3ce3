"""Our plugin on a node that upstream's scheduler places pods on (spec/scheduler 2.8, spec/node 3.4)."""

from __future__ import annotations

import asyncio

import grpc.aio
import pytest

from hami.core.codec import RegisterForm
from hami.core.keys import NODE_LOCK, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from hami.deviceplugin.settings import Heartbeat
from tests.deviceplugin.bench import NODE, A, B, Bench
from tests.deviceplugin.upstream_scheduler import (
    HANDSHAKE,
    REGISTER,
    STAMP,
    UpstreamScheduler,
    read_register_2_4_1,
    read_register_2_7,
)

ONE = f"{A},NVIDIA,3000,30:;"


async def lock_of(node: Bench) -> str:
    return (await node.node()).annotations.get(NODE_LOCK, "")


@pytest.mark.parametrize("lock", ["", STAMP, None], ids=["with owner", "time only", "none"])
async def test_a_pod_of_upstreams_scheduler_is_served(node: Bench, lock: str | None) -> None:
    await node.start_plugin()
    upstream = UpstreamScheduler(node)
    pod = await upstream.create("p")
    await upstream.filter(pod, ONE)
    await upstream.bind(pod, lock=lock)
    answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == A
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "3000m"
    done = await node.pod("p")
    assert done.annotations["hami.io/vgpu-devices-allocated"] == ONE
    assert "NVIDIA" not in done.annotations["hami.io/vgpu-devices-to-allocate"]
    assert done.annotations["hami.io/bind-phase"] == PHASE_SUCCESS
    await node.token_free()


async def test_an_annotated_pod_that_is_not_bound_yet_gets_nothing(node: Bench) -> None:
    """Upstream writes allocations in filter: the text alone entitles nobody."""
    await node.start_plugin()
    upstream = UpstreamScheduler(node)
    waiting = await upstream.create("waiting")
    await upstream.filter(waiting, ONE)
    pod = await upstream.create("p")
    await upstream.filter(pod, f"{B},NVIDIA,2000,0:;")
    await upstream.bind(pod, lock=STAMP)
    answer = (await node.kubelet.allocate([f"{B}-0"])).container_responses[0]
    assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == B
    assert await node.work("waiting") == ONE
    assert await node.phase("waiting") == ""


async def test_containers_as_2_4_1_writes_them(node: Bench) -> None:
    """No segment for a container before the first with cards, a placeholder for one after it."""
    await node.start_plugin()
    upstream = UpstreamScheduler(node)
    pod = await upstream.create("p", "idle", "a", "late")
    await upstream.filter(pod, f"{A},NVIDIA,1000,0:;,,0,0:;", label=False)
    await upstream.bind(pod, lock=STAMP)
    answer = (await node.kubelet.allocate([f"{A}-0"])).container_responses[0]
    assert answer.envs["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert await node.phase("p") == PHASE_SUCCESS
    await node.token_free()


async def test_2_10_counts_init_containers_first(node: Bench) -> None:
    await node.start_plugin()
    upstream = UpstreamScheduler(node)
    pod = await upstream.create("p", "main", init=("setup",))
    await upstream.filter(pod, f"{B},NVIDIA,500,0:;{A},NVIDIA,1000,0:;")
    await upstream.bind(pod)
    for card, folder in ((B, "_setup"), (A, "_main")):
        answer = (await node.kubelet.allocate([f"{card}-0"])).container_responses[0]
        assert answer.envs["NVIDIA_VISIBLE_DEVICES"] == card
        assert answer.mounts[1].host_path.endswith(folder)
    assert await node.phase("p") == PHASE_SUCCESS


async def test_a_slice_id_of_2_5_to_2_9_is_refused_with_words_and_harms_nobody(node: Bench) -> None:
    """Such pods were placed on cards in MIG mode, which this node does not have (spec/node 5.5: drain first)."""
    await node.start_plugin()
    upstream = UpstreamScheduler(node)
    old = await upstream.create("old")
    await upstream.filter(old, f"{A}[0-1],NVIDIA,9728,14:;")
    await upstream.bind(old)
    other = await upstream.create("other")
    await upstream.filter(other, ONE)
    await upstream.bind(other, lock=None)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await node.kubelet.allocate([f"{A}-0"])
    assert f"{A}[0-1]" in str(refused.value.details())
    assert (await node.phase("old"), await lock_of(node)) == (PHASE_FAILED, "")
    assert (await node.phase("other"), await node.work("other")) == (PHASE_ALLOCATING, ONE)


async def test_a_lock_of_another_pod_stays(node: Bench) -> None:
    await node.start_plugin()
    upstream = UpstreamScheduler(node)
    pod = await upstream.create("p")
    await upstream.filter(pod, ONE)
    await upstream.bind(pod, lock=f"{STAMP},default,other")
    await node.kubelet.allocate([f"{A}-0"])
    assert await node.phase("p") == PHASE_SUCCESS
    assert await lock_of(node) == f"{STAMP},default,other"


async def test_registers_are_read_by_the_releases_that_they_are_for(node: Bench) -> None:
    await node.start_plugin(register_form=RegisterForm.CSV7)
    await node.until(lambda: any(seen.verb == "patch" and seen.resource == "nodes" for seen in node.api.seen), "report")
    seven = read_register_2_4_1((await node.node()).annotations[REGISTER])
    assert [(card[0], card[1], card[2], card[6]) for card in seven] == [(A, 3, 40960, True), (B, 3, 40960, True)]
    await node.stop_plugin()
    await node.start_plugin(register_form=RegisterForm.CSV9)
    async with asyncio.timeout(60):
        while (await node.node()).annotations[REGISTER].count(",") != 16:  # noqa: ASYNC110 - polls the API server
            await asyncio.sleep(0.01)
    nine = read_register_2_7((await node.node()).annotations[REGISTER])
    assert [(card[0], card[7], card[8]) for card in nine] == [(A, 0, "hami-core"), (B, 1, "hami-core")]


async def test_a_scheduler_that_asks_for_life_is_answered_within_a_period(node: Bench) -> None:
    """2.4.1 drops the node 60 s after its stamp unless the plugin writes over it."""
    await node.start_plugin()
    await UpstreamScheduler(node).ask_for_life()
    async with asyncio.timeout(60):
        while not (await node.node()).annotations[HANDSHAKE].startswith("Reported"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_on_change_leaves_the_question_standing_and_the_node_in_place(node: Bench) -> None:
    """From 2.8 on schedulers go by what kubelet offers; writing nothing is what `on-change` is for."""
    await node.start_plugin(heartbeat=Heartbeat.ON_CHANGE)
    await node.until(lambda: any(seen.verb == "patch" and seen.resource == "nodes" for seen in node.api.seen), "report")
    await UpstreamScheduler(node).ask_for_life()
    looks = len(node.api.seen)
    await node.until(lambda: len(node.api.seen) >= looks + 3, "three looks")
    annotations = (await node.writer.get_node(NODE)).annotations
    assert annotations[HANDSHAKE].startswith("Requesting_")
    assert REGISTER in annotations
