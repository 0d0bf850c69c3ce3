"""Reports on metrics and on what the chart makes of them: B116 and others of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.core.errors import NvmlError
from hami.core.objects import PodStatus
from hami.monitor.metrics import CONTAINER_LABELS
from hami.monitor.monitor import Monitor
from hami.monitor.pods import PodBook
from hami.monitor.settings import MonitorSettings
from hami.nvml.probe import CardLoad, DeviceProbe
from hami.web import card_metrics
from hami.web.node_families import POD_LABELS
from tests.chart.rendering import container as container_of
from tests.chart.rendering import render
from tests.monitor.monitored import monitor, no_pods, pod
from tests.monitor.regions import MIB, container, region
from tests.placement.fakes import make_node, make_world
from tests.web.asgi_client import call

JOIN = ("node", "namespace", "pod", "device_uuid")


def test_b116_allocation_and_use_have_the_same_label_names() -> None:
    assert set(JOIN) <= {*POD_LABELS} & {*CONTAINER_LABELS}


async def test_b116_every_series_of_a_card_names_the_node(tmp_path: Path) -> None:
    container(tmp_path, "u1_main", region())
    made = monitor(tmp_path, pod("u1", "train"))
    await made.ask_driver()
    text = (await made.scrape()).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    nodes = {sample.labels.get("node") for sample in samples if "device_uuid" in sample.labels}
    assert nodes == {"n1"}


def test_b116_scraping_keeps_the_labels_of_workloads() -> None:
    objects = render({"prometheus": {"enabled": True}}, apis=("monitoring.coreos.com/v1",))
    endpoints = [each["spec"]["endpoints"] for each in objects if each["kind"] == "ServiceMonitor"]
    assert len(endpoints) == 2
    assert all(endpoint["honorLabels"] is True for each in endpoints for endpoint in each)


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
async def test_a_pod_that_has_ended_has_no_series_though_the_api_still_has_it(tmp_path: Path, phase: str) -> None:
    container(tmp_path, "u1_main", region(processes=((0, 0, 100, 40, 1),)))
    ended = msgspec.structs.replace(pod("u1", "train"), status=PodStatus(phase=phase))
    made = monitor(tmp_path, ended)
    await made.tick()
    text = (await made.scrape()).decode()
    assert ('pod="train"' in text) == (phase == "Running")
    assert (tmp_path / "containers/u1_main").is_dir()


async def test_b116_with_several_replicas_each_card_is_counted_once() -> None:
    """Upstream's Service leads to the leader; ours to every replica, and all of them are scraped."""
    world = make_world()
    world.on_node(make_node("n1", 2))
    replicas = [card_metrics.app(world, {}, leads=leads.__bool__) for leads in (True, False)]
    pages = [(await call(each, "/metrics", method="GET")).body.decode() for each in replicas]
    assert [page.count("\nhami_gpu_memory_limit_bytes{") for page in pages] == [2, 0]
    assert [page.count("\nhami_scheduler_nodes_out ") for page in pages] == [1, 1]
    assert all("hami_scheduler_leads" in page for page in pages)


class Driver:
    """A driver of which some questions fail."""

    def __init__(self) -> None:
        self.loads_now: tuple[CardLoad, ...] = ()

    async def loads(self) -> tuple[CardLoad, ...]:
        if not self.loads_now:
            raise NvmlError("Unknown Error")
        return self.loads_now


async def test_b118_failed_questions_are_counted_and_hide_nothing_else(tmp_path: Path) -> None:
    book, driver = PodBook(), Driver()
    made = Monitor(MonitorSettings(node_name="n1", vgpu_dir=tmp_path), cast(DeviceProbe, driver), book, no_pods)

    async def after(*loads: CardLoad) -> tuple[float, set[str]]:
        driver.loads_now = loads
        await made.ask_driver()
        text = (await made.scrape()).decode()
        assert "NaN" not in text
        families = {family.name: family.samples for family in text_string_to_metric_families(text)}
        cards = {each.labels["device_uuid"] for each in families["hami_host_gpu_memory_used_bytes"]}
        return families["hami_monitor_driver_errors"][0].value, cards

    busy = CardLoad("GPU-a", 0, "T4", memory_used_bytes=5, problems=("utilisation of card GPU-a: Unknown Error",))
    silent = CardLoad("", 1, "", problems=("card 1: Unknown Error",))
    assert await after(CardLoad("GPU-a", 0, "T4", 5, 7, 1)) == (0, {"GPU-a"})
    assert await after(busy, silent, CardLoad("GPU-c", 2, "T4", 0, 0, 0)) == (2, {"GPU-a", "GPU-c"})
    assert await after() == (3, set())


LIMITS = """NVIDIA_VISIBLE_DEVICES=GPU-a,GPU-b
CUDA_DEVICE_MEMORY_LIMIT=1000m
CUDA_DEVICE_MEMORY_LIMIT_0=1000m
CUDA_DEVICE_MEMORY_LIMIT_1=2000m
CUDA_DEVICE_SM_LIMIT=30
CUDA_DEVICE_MEMORY_SHARED_CACHE=/usr/local/vgpu/r.cache
"""


@pytest.mark.parametrize("limits", [LIMITS, "", "NVIDIA_VISIBLE_DEVICES=\nodd"])
async def test_b113_a_container_has_series_before_it_first_uses_a_card(tmp_path: Path, limits: str) -> None:
    """HAMi issues 1794, 1814: none for hours, until somebody ran nvidia-smi in the container."""
    container(tmp_path, "u1_main", b"")
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits/u1_main").write_text(limits)
    busy = container(tmp_path, "u2_main", region(priority=0, uuids=("GPU-a",)))
    made = monitor(tmp_path, pod("u1", "train"), pod("u2", "urgent"))
    await made.tick()
    text = (await made.scrape()).decode()
    families = {family.name: family.samples for family in text_string_to_metric_families(text)}
    of_pod = [each for each in families["hami_vgpu_memory_limit_bytes"] if each.labels["pod"] == "train"]
    wanted = {"GPU-a": 1000 * MIB, "GPU-b": 2000 * MIB} if limits == LIMITS else {}
    assert {each.labels["device_uuid"]: each.value for each in of_pod} == wanted
    used = [each.value for each in families["hami_vgpu_memory_used_bytes"] if each.labels["pod"] == "train"]
    assert used == [0.0] * len(wanted)
    assert families["hami_monitor_unreadable_regions"][0].value == 0
    assert (tmp_path / "containers/u1_main/r.cache").read_bytes() == b""
    assert busy.stat().st_size > 0


def test_an_ipv6_clusters_kubelet_reaches_the_scheduler() -> None:
    arguments = container_of(render(), "Deployment", "vgpu-scheduler-extender")["args"]
    listeners = [each for each in arguments if each.startswith(("--http_bind=", "--metrics-bind-address="))]
    assert listeners == ["--http_bind=:8443", "--metrics-bind-address=:9395"]
