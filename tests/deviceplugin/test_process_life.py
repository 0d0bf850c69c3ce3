"""The process around the plugin: configuration reloaded, crashes, signals, --cleanup, health and metrics."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hami.deviceplugin.crash_policy import CrashPolicy
from hami.deviceplugin.plugin import Plugin
from hami.deviceplugin.single import AnotherPluginError, NodeLock
from hami.kube import paths
from hami.sim.apiserver.faults import Fault
from hami.vendors.nvidia.names import HANDSHAKE_KEY, REGISTER_KEY, SCORE_KEY
from tests.deviceplugin.bench import NODE, A, B, Bench
from tests.deviceplugin.calls import ONE
from tests.deviceplugin.process_life import Life, living
from tests.tools.waiting import until_answered


@pytest.mark.parametrize(
    ("entry", "devices", "wanted"),
    [
        ({"devicesplitcount": 5}, 10, lambda cards: [card.slots for card in cards] == [5, 5]),
        ({"devicememoryscaling": 2}, 6, lambda cards: [card.memory_mib for card in cards] == [81920, 81920]),
        ({"devicecorescaling": 1.5}, 6, lambda cards: [card.core_percent for card in cards] == [150, 150]),
        ({"filterdevices": {"index": [0]}}, 3, lambda cards: [card.id for card in cards] == [B]),
        ({"filterdevices": {"uuid": [B]}}, 3, lambda cards: [card.id for card in cards] == [A]),
        ({"operatingmode": "mps"}, 6, lambda cards: {card.mode for card in cards} == {"mps"}),
    ],
)
async def test_config_json_is_taken_over_without_a_restart(
    node: Bench, entry: dict[str, Any], devices: int, wanted: Callable[[Any], bool]
) -> None:
    async with living(node) as life:
        await life.register_until(lambda cards: len(cards) == 2)
        life.write_node_config(**entry)
        await life.register_until(wanted)
        await node.until(lambda: len(node.kubelet.devices) == devices, "the list that kubelet sees")
        life.write_node_config()
        await life.register_until(
            lambda cards: (
                [(card.id, card.slots, card.memory_mib, card.core_percent, card.mode) for card in cards]
                == [(card, 3, 40960, 100, "hami-core") for card in (A, B)]
            )
        )


async def test_preferred_allocation_numa_log_level_and_memory_are_taken_over_too(node: Bench) -> None:
    node.profile.write_text("cards: [{model: GB10, memory_mib: null, numa: 1}]")
    async with living(node) as life:
        assert node.kubelet.requests[0].options.get_preferred_allocation_available
        life.write_node_config(
            enablegetpreferredallocation=False, enablenumatopology=True, libcudaloglevel="4",
            preconfigureddevicememory=1024,
        )  # fmt: skip
        await life.registrations(2)
        assert not node.kubelet.requests[1].options.get_preferred_allocation_available
        await node.until(lambda: node.kubelet.lists[-1][0].HasField("topology"), "NUMA nodes")
        await life.register_until(lambda cards: [card.memory_mib for card in cards] == [1024])
        await node.bound_pod("p1", f"{A},NVIDIA,512,30:;")
        answer = await node.kubelet.allocate([f"{A}-0"])
        assert answer.container_responses[0].envs["LIBCUDA_LOG_LEVEL"] == "4"


@pytest.mark.parametrize("content", ["{", '{"nodeconfig": [{"name": "n1", "devicesplitcount": -1}]}', '{"nodes": []}'])
async def test_a_wrong_file_is_said_and_the_last_good_one_stays(node: Bench, content: str) -> None:
    async with living(node) as life:
        life.write_node_config(devicesplitcount=5)
        await node.until(lambda: len(node.kubelet.devices) == 10, "the new count")
        life.node_config.write_text(content)
        await until_answered(lambda: _has_event(life, "InvalidConfiguration"), "an event")
        assert len(node.kubelet.devices) == 10
        assert (await life.get("/readyz"))[0] == 200
        life.write_node_config(devicesplitcount=4)
        await node.until(lambda: len(node.kubelet.devices) == 8, "the next good one")


async def _has_event(life: Life, reason: str) -> bool:
    return any(found == reason for found, _ in await life.events())


async def test_a_waiting_pod_is_served_across_a_reload(node: Bench) -> None:
    async with living(node) as life:
        await node.bound_pod("p1", ONE)
        life.write_node_config(devicesplitcount=5)
        await node.until(lambda: len(node.kubelet.devices) == 10, "the new count")
        await node.kubelet.allocate([f"{A}-4"])
        assert await node.phase("p1") == "success"
        await node.token_free()


async def test_sighup_starts_everything_anew(node: Bench) -> None:
    async with living(node) as life:
        os.kill(os.getpid(), signal.SIGHUP)
        await life.registrations(2)
        await until_answered(lambda: _ready(life), "ready")


async def _ready(life: Life) -> bool:
    return (await life.get("/readyz"))[0] == 200


async def test_health_readiness_and_metrics(node: Bench) -> None:
    async with living(node) as life:
        await until_answered(lambda: _ready(life), "ready")
        assert (await life.get("/healthz"))[0] == 200
        assert (await life.metric("cards"), await life.metric("cards_unhealthy")) == (2, 0)
        await node.bound_pod("p1", ONE)
        await node.kubelet.allocate([f"{A}-0"])
        assert await life.metric("allocate_served") == 1
        await node.kubelet.stop()
        (node.kubelet.folder / "nvidia-gpu.sock").unlink()
        await node.kubelet.start()
        await life.registrations(2)
    with pytest.raises(aiohttp.ClientConnectionError):
        await life.get("/healthz")


async def test_without_kubelet_it_is_healthy_and_not_ready(node: Bench) -> None:
    await node.kubelet.stop()
    (node.kubelet.folder / "kubelet.sock").unlink(missing_ok=True)
    life = Life(node)
    life.start()
    try:
        await until_answered(lambda: _answers(life), "an answer")
        assert (await life.get("/readyz")) == (503, "not registered with kubelet")
        assert (await life.get("/healthz"))[0] == 200
    finally:
        life.task.cancel()
        with suppress(asyncio.CancelledError):
            await life.task


async def _answers(life: Life) -> bool:
    try:
        return (await life.get("/healthz"))[0] == 200
    except aiohttp.ClientConnectionError:
        return False


async def test_a_fault_of_its_own_is_said_and_the_plugin_starts_anew(
    node: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hami.apps.device_plugin._CRASH_PAUSE_S", 0.01)
    real, crashes = Plugin.run, [0]

    async def crashing(plugin: Plugin) -> None:
        crashes[0] += 1
        if crashes[0] <= 3:
            raise RuntimeError("a fault of ours")
        await real(plugin)

    monkeypatch.setattr(Plugin, "run", crashing)
    async with living(node) as life:
        assert crashes == [4]
        await until_answered(lambda: _has_event(life, "DevicePluginCrashed"), "an event")


async def test_a_plugin_that_only_crashes_ends(node: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hami.apps.device_plugin._CRASH_PAUSE_S", 0.01)
    crashes = [0]

    async def crashing(_: Plugin) -> None:
        crashes[0] += 1
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Plugin, "run", crashing)
    life = Life(node)
    life.start()
    with pytest.raises(RuntimeError, match="a fault of ours"):
        await asyncio.wait_for(life.task, 60)
    assert crashes == [6]


def test_crashes_an_hour_apart_are_forgotten() -> None:
    policy = CrashPolicy()
    assert [policy.may_go_on(second) for second in (0, 1, 2, 3, 3602)] == [True] * 5
    assert not policy.may_go_on(3603)
    assert policy.may_go_on(3603 + 3601)


async def test_cleanup_takes_back_everything_but_what_pods_have(node: Bench) -> None:
    foreign = node.folder / "cdi/nvidia.yaml"
    flags = ("--device-list-strategy=cdi-cri", "--topology-score")
    async with living(node, *flags) as life:
        pod = await node.bound_pod("p1", ONE)
        await node.kubelet.allocate([f"{A}-0"])
        await life.register_until(lambda cards: len(cards) == 2)
    foreign.touch()
    await node.writer.patch_node_annotations(NODE, {"keep": "1"})
    (node.folder / "hook/vgpu/containers/gone-uid_main").mkdir()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(node.kubelet.folder / "nvidia-gpu.sock"))
    stale.close()
    gone = Life(node, *flags, "--cleanup")
    gone.start()
    await asyncio.wait_for(gone.task, 60)
    assert (await node.node()).annotations == {"keep": "1"}
    assert list((node.folder / "cdi").iterdir()) == [foreign]
    kept = f"{pod.metadata.uid}_main"
    assert [path.name for path in (node.folder / "hook/vgpu/containers").iterdir()] == [kept]
    assert [path.name for path in (node.folder / "hook/vgpu/limits").iterdir()] == [kept]
    assert [path.name for path in node.kubelet.folder.iterdir()] == ["kubelet.sock"]
    await node.client.request("DELETE", paths.pod("default", "p1"), params={"gracePeriodSeconds": "0"})
    again = Life(node, "--cleanup")
    again.start()
    await asyncio.wait_for(again.task, 60)
    assert not list((node.folder / "hook/vgpu/containers").iterdir())
    for key in (HANDSHAKE_KEY, REGISTER_KEY, SCORE_KEY):
        assert key not in (await node.node()).annotations


async def test_cleanup_is_refused_while_a_plugin_serves(node: Bench) -> None:
    lock = NodeLock(node.kubelet.folder, "nvidia-gpu")
    lock.acquire()
    await node.writer.patch_node_annotations(NODE, {REGISTER_KEY: "[]"})
    life = Life(node, "--cleanup")
    life.start()
    with pytest.raises(AnotherPluginError, match=f"pid {os.getpid()}"):
        await asyncio.wait_for(life.task, 60)
    assert REGISTER_KEY in (await node.node()).annotations
    lock.release()


async def test_a_graceful_stop_lets_the_call_in_progress_end(node: Bench) -> None:
    async with living(node) as life:
        await node.bound_pod("p1", ONE)
        fault = node.api.faults.add(Fault("latency", verb="patch", resource="pods", seconds=0.3, times=1))
        call = asyncio.create_task(node.kubelet.allocate([f"{A}-0"]))
        await node.until(lambda: fault.hits, "the erase")
        started = time.monotonic()
        life.task.cancel()
        answer = await asyncio.wait_for(call, 60)
        assert answer.container_responses[0].envs["NVIDIA_VISIBLE_DEVICES"] == A
        with suppress(asyncio.CancelledError):
            await life.task
        assert time.monotonic() - started < 60
        assert await node.phase("p1") == "success"
        await node.token_free()
        assert not (node.kubelet.folder / "nvidia-gpu.sock").exists()


def test_the_folder_of_the_lock_is_where_no_container_reaches(tmp_path: Path) -> None:
    lock = NodeLock(tmp_path, "nvidia-gpu")
    lock.acquire()
    assert [path.name for path in lock.folder.iterdir()] == ["nvidia-gpu.lock"]
    lock.release()
