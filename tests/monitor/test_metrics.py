"""What Prometheus reads, to the letter: tests/golden/metrics (spec/contract 3.6, spec/node 6.5)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.core.keys import MIG_ALLOCATIONS
from hami.core.objects import Pod
from hami.monitor.monitor import Monitor
from tests.monitor.monitored import PROFILE, monitor, pod
from tests.monitor.regions import container, region

GOLDEN = Path(__file__).parents[1] / "golden/metrics"
LONG_UUID = "GPU-11111111-2222-3333-4444-555555555555"
SLICE = {"containerIndex": 1, "deviceIndex": 0, "gpuUUID": "GPU-b", "profile": "1g.5gb"}
IDENTITY = {"migUUID": "MIG-1", "gpuInstanceID": 7, "computeInstanceID": 0}
MIG = [
    SLICE | IDENTITY | {"placement": {"start": 0, "size": 1}},
    SLICE | {"deviceIndex": 1, "placement": {"start": 1, "size": 1}},
]


def busy_node(tmp_path: Path) -> list[Pod]:
    processes = ((100, 20, 300, 15, 1), (0, 0, 44, 5, 1), (9, 9, 9, 9, 0))
    container(tmp_path, "u1_main", region(processes=processes, uuids=("GPU-a", LONG_UUID + "-more")))
    container(tmp_path, "u1_init", region(uuids=("GPU-b",), limit_mib=0))
    container(tmp_path, "u2_main", b"garbage")
    return [pod("u1", "train"), pod("u2", "odd"), pod("u3", "sliced", **{MIG_ALLOCATIONS: json.dumps(MIG)})]


def comparable(text: bytes) -> str:
    """Without the build's own words."""
    return re.sub(r"(hami_build_info)\{[^}]*\}", r"\1{...}", text.decode())


@pytest.mark.parametrize(("name", "legacy"), [("monitor.prom", False), ("monitor-legacy.prom", True)])
async def test_the_text_is_the_golden_one(tmp_path: Path, name: str, legacy: bool) -> None:
    made = monitor(tmp_path, *busy_node(tmp_path), legacy=legacy)
    await made.ask_driver()
    assert comparable(await made.scrape()) == (GOLDEN / name).read_text()


async def test_time_since_the_last_kernel(tmp_path: Path) -> None:
    now_s = int(time.time())
    container(tmp_path, "u1_main", region(last_kernel_s=now_s - 90))
    container(tmp_path, "u1_init", region(last_kernel_s=now_s + 900))
    families = await parsed(monitor(tmp_path, pod("u1", "train"), legacy=True))
    for name in ("hami_container_last_kernel_elapsed_seconds", "Device_last_kernel_of_container"):
        init, main = sorted(value for _, value in families[name])
        assert init == 0
        assert 90 <= main < 150


async def test_a_driver_that_is_gone_takes_host_metrics_only(tmp_path: Path) -> None:
    made = monitor(tmp_path, *busy_node(tmp_path))
    await made.ask_driver()
    before = await parsed(made)
    (tmp_path / "profile.yaml").write_text(PROFILE + "faults: {driver: gone}\n")
    await made.ask_driver()
    after = await parsed(made)
    assert len(before["hami_host_gpu_utilization_ratio"]) == 3
    assert after["hami_host_gpu_utilization_ratio"] == []
    assert after["hami_monitor_driver_answers"] == [({}, 0.0)]
    assert [value for _, value in after["hami_vgpumonitor_collect_success"]] == [0.0]
    assert after["hami_vgpu_memory_used_bytes"] == before["hami_vgpu_memory_used_bytes"] != []


@pytest.mark.parametrize("broken", [False, True])
async def test_one_number_tells_whether_all_was_read(tmp_path: Path, broken: bool) -> None:
    """What HAMi's alerts on a blind monitor ask for (HAMi #1089, #2867)."""
    container(tmp_path, "u1_main", b"garbage" if broken else region())
    made = monitor(tmp_path, pod("u1", "train"))
    await made.ask_driver()
    ((labels, value),) = (await parsed(made))["hami_vgpumonitor_collect_success"]
    assert (set(labels), value) == ({"zone", "node"}, 0.0 if broken else 1.0)


async def test_it_ends_when_asked_also_where_the_folder_cannot_be_listed(tmp_path: Path) -> None:
    made = monitor(tmp_path)
    running = asyncio.create_task(made.run())
    async with asyncio.timeout(60):
        await made.looked.wait()
    (tmp_path / "containers").touch()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_text_of_containers_cannot_forge_a_line(tmp_path: Path) -> None:
    container(tmp_path, "u1_main", region(uuids=('GPU-x"} 1\nhami_host_gpu_x 5\\', "GPU-\x7f")))
    families = await parsed(monitor(tmp_path, pod("u1", "train")))
    assert not any("hami_host_gpu_x" in name for name in families)
    assert [labels["device_uuid"] for labels, _ in families["hami_vgpu_memory_used_bytes"]] == [
        'GPU-x"} 1\nhami_host_gpu_x 5\\',
        "GPU-\x7f",
    ]


async def parsed(made: Monitor) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = text_string_to_metric_families((await made.scrape()).decode())
    return {each.name: [(sample.labels, sample.value) for sample in each.samples] for each in families}
