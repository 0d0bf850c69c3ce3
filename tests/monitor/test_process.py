"""`hami monitor` as a process beside the embedded cluster: metrics of a pod, feedback, folders, health, its end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hami.shim.layout import read_region
from hami.sim.cluster import SimCluster
from tests.monitor.monitored import PROFILE
from tests.monitor.regions import MIB, container, region

NODE = "gpu-node"
START = "import sys; from hami.apps.cli import main; sys.exit(main())"
DEADLINE_S = 60.0


class Process:
    """A running monitor and its address."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process = process
        self.url = url

    async def get(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(_get, self.url + path)

    async def until(self, path: str, wanted: Callable[[int, str], bool]) -> str:
        deadline_s = time.monotonic() + DEADLINE_S
        while True:
            status, text = await self.get(path)
            if wanted(status, text):
                return text
            assert time.monotonic() < deadline_s, f"{path}: {status} {text}"
            await asyncio.sleep(0.05)


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:
        return 0, ""  # bound, not listening yet


@asynccontextmanager
async def monitor_process(folder: Path, kubeconfig: Path, *flags: str) -> AsyncIterator[Process]:
    """Killed at the end if it still runs."""
    profile = folder / "profile.yaml"
    profile.write_text(PROFILE)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        START,
        "monitor",
        f"--kubeconfig={kubeconfig}",
        f"--node-name={NODE}",
        f"--hook-path={folder}",
        "--metrics-bind-address=127.0.0.1:0",
        f"--nvml=sim:{profile}",
        *flags,
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert process.stderr is not None
    drain = None
    try:
        said, url = "", None
        while url is None:
            line = (await asyncio.wait_for(process.stderr.readline(), DEADLINE_S)).decode()
            assert line, said
            said += line
            url = re.search(r"http://[0-9.:]+", line)
        drain = asyncio.ensure_future(process.stderr.read())
        yield Process(process, url.group())
    finally:
        if process.returncode is None:
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        if drain is not None:
            await drain


async def running_pod(cluster: SimCluster, name: str, node: str = NODE) -> str:
    """A pod of a node; returns its uid."""
    made = await cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none"}]},
        }
    )
    return str(made["metadata"]["uid"])


def pod_path(name: str) -> str:
    return f"/api/v1/namespaces/default/pods/{name}"


@pytest.mark.timeout(300)
async def test_a_pod_is_measured_told_and_cleared_away(tmp_path: Path) -> None:
    vgpu = tmp_path / "vgpu"
    async with SimCluster(directory=tmp_path) as cluster:
        first, elsewhere = await running_pod(cluster, "first"), await running_pod(cluster, "far", "other-node")
        urgent = container(vgpu, f"{first}_main", region(processes=((0, 0, 100, 0, 1),), priority=0))
        stranger = container(vgpu, f"{elsewhere}_main", region())
        os.utime(stranger.parent, (1, 1))
        async with monitor_process(
            tmp_path, cluster.kubeconfig, "--resync-interval=1s", "--look-interval=100ms"
        ) as monitor:
            await monitor.until("/readyz", lambda status, _: status == 200)
            text = await monitor.until("/metrics", lambda _, text: 'pod="first"' in text and "A100" in text)
            labels = 'container="main",device_uuid="GPU-a",namespace="default",node="gpu-node",'
            labels += 'pod="first",vdevice_index="0",zone="vGPU"'
            assert f"hami_vgpu_memory_used_bytes{{{labels}}} {100 * MIB:e}\n" in text
            assert 'pod="far"' not in text
            assert "HostGPUMemoryUsage" not in text
            second = await running_pod(cluster, "second")
            low = container(vgpu, f"{second}_main", region(priority=1))
            await monitor.until("/metrics", lambda _, text: 'pod="second"' in text)
            await _until(lambda: _at_work(urgent) and read_region(low).recent_kernel == -1)
            assert read_region(low).utilization_switch == 1
            await _until(lambda: read_region(low).recent_kernel == 0)
            await _until(lambda: not stranger.parent.exists())
            await cluster.client.request("DELETE", pod_path("first"), {"gracePeriodSeconds": 0})
            await monitor.until("/metrics", lambda _, text: 'pod="first"' not in text)
            os.utime(urgent.parent, (1, 1))
            await _until(lambda: not urgent.parent.exists())
            assert low.exists()
            assert await monitor.get("/healthz") == (200, "")
            assert (await monitor.get("/"))[0] == 404
            os.kill(monitor.process.pid, signal.SIGTERM)
            assert await asyncio.wait_for(monitor.process.wait(), 60) == 0


@pytest.mark.timeout(300)
async def test_without_an_api_server_it_lives_measures_the_host_and_removes_nothing(tmp_path: Path) -> None:
    vgpu = tmp_path / "vgpu"
    kept = container(vgpu, "u_main", region())
    os.utime(kept.parent, (1, 1))
    async with SimCluster(directory=tmp_path) as cluster:
        pass  # its API server is gone, its kubeconfig stays
    async with monitor_process(
        tmp_path, cluster.kubeconfig, "--resync-interval=1ms", "--look-interval=20ms", "--legacy-metrics"
    ) as monitor:
        assert await monitor.until("/healthz", lambda status, _: status == 200) == ""
        assert "pods" in await monitor.until("/readyz", lambda status, _: status == 503)
        assert "MigInfo" in (await monitor.get("/metrics"))[1]
        assert kept.exists()


def _at_work(path: Path) -> bool:
    """What the in-container library does at a launch."""
    path.write_bytes(region(processes=((0, 0, 100, 0, 1),), priority=0, recent=3))
    return True


async def _until(wanted: Callable[[], Any]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not wanted():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
