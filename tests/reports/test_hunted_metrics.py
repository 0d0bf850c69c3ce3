"""The scheduler's page of metrics over worlds with odd names: it can be read, and no series stands there twice."""

from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hami.core.objects import node_decoder
from hami.web import card_metrics
from tests.reports.site import Object, Site, card, gpu, pod
from tests.web.asgi_client import call

Series = tuple[str, tuple[tuple[str, str], ...]]
ODD = ['a"b', "a\\b", "a\\nb", "a\nb", "é中", "\x00", "", "x" * 5000, "a}b", 'a=b,c="d"', "\u2028", "\r", "\t", "{}"]


async def scraped(site: Site, *, legacy: bool = False) -> dict[Series, float]:
    page = await call(card_metrics.app(site.world, {}, legacy=legacy), "/metrics", method="GET")
    assert page.status == 200
    samples = [each for family in text_string_to_metric_families(page.body.decode()) for each in family.samples]
    series = {(each.name, tuple(sorted(each.labels.items()))): each.value for each in samples}
    assert len(series) == len(samples)
    return series


def register(site: Site, name: str, cards: list[Object], zone: str = "") -> None:
    notes = {"hami.io/node-nvidia-register": json.dumps(cards)}
    metadata = {"name": name, "uid": name, "annotations": notes, "labels": {"topology.kubernetes.io/zone": zone}}
    body = {"metadata": metadata, "status": {"allocatable": {"nvidia.com/gpu": "10"}}}
    site.world.on_node(node_decoder.decode(json.dumps(body)), listed=True)


def of(series: dict[Series, float], label: str) -> set[str]:
    return {value for _, labels in series for name, value in labels if name == label}


@pytest.mark.parametrize("odd", ODD, ids=lambda text: ascii(text)[:12])
@pytest.mark.parametrize("place", ["type", "mode", "zone", "quota"])
async def test_any_text_of_the_cluster_is_a_label_and_breaks_no_line(place: str, odd: str) -> None:
    site = Site()
    register(site, "n1", [card("GPU-1", **({place: odd} if place in ("type", "mode") else {}))], zone=odd)
    site.running(pod(gpu(gpu=1, mem=100)), "n1", "GPU-1,NVIDIA,100,10:;")
    site.quota(name=odd, namespace=odd if place == "quota" else "default", limits_nvidia_com__gpumem="100")
    for legacy in (False, True):
        series = await scraped(site, legacy=legacy)
        assert "GPU-1" in of(series, "device_uuid")
    if place == "type":
        assert odd in of(series, "device_type")


async def test_hami_1595_a_node_that_is_gone_is_gone_from_the_page_at_once() -> None:
    site = Site()
    for name in ("n1", "n2"):
        register(site, name, [card(f"GPU-{name}")])
    before = await scraped(site, legacy=True)
    site.world.on_node_deleted("n1")
    after = await scraped(site, legacy=True)
    assert of(before, "node") >= {"n1", "n2"}
    assert "n1" not in {value for _, labels in after for _, value in labels}
    assert "GPU-n1" not in of(after, "device_uuid")


async def test_one_uuid_on_two_nodes_is_two_series() -> None:
    site = Site()
    for name in ("n1", "n2"):
        register(site, name, [card("GPU-same"), card("GPU-same", index=1)])
    series = await scraped(site, legacy=True)
    limits = [dict(labels) for name, labels in series if name == "hami_gpu_memory_limit_bytes"]
    assert sorted((each["node"], each["device_uuid"]) for each in limits) == [("n1", "GPU-same"), ("n2", "GPU-same")]
