"""Alerts on shares (HAMi #2372, #2460, #2639): which are made when, and that they ask for series that we give."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hami.monitor import metrics
from hami.web.node_families import NODE_FAMILIES
from tests.chart.rendering import Object, RenderError, notes, one, render

APIS = ("monitoring.coreos.com/v1",)
LABELS = {family.name: set(family.labels) for family in NODE_FAMILIES} | {
    family.name: set(metrics.CONTAINER_LABELS) for family in metrics.container_families([], 0)
}


def alerts(settings: dict[str, Any], **more: Any) -> list[Object]:
    values = {"prometheus": {"enabled": True, "alerts": {"enabled": True, **settings}, **more}}
    rule = one(render(values, apis=APIS), "PrometheusRule")
    (group,) = rule["spec"]["groups"]
    return list(group["rules"])


def test_the_alerts_that_hami_agreed_on() -> None:
    found = alerts({"rules": {"schedulerMetricsAbsent": {"enabled": True}}})
    assert [(rule["alert"], rule["expr"], rule["for"], rule["labels"]) for rule in found] == [
        (
            "HAMiGPUMemoryNearlyExhausted",
            "100 * hami_node_gpu_memory_allocated_ratio > 90",
            "10m",
            {"severity": "warning"},
        ),
        (
            "HAMiGPUCoresNearlyExhausted",
            "100 * hami_gpu_core_allocated_ratio / (hami_gpu_core_limit_ratio > 0) > 90",
            "10m",
            {"severity": "warning"},
        ),
        (
            "HAMivGPUMemoryNearLimit",
            "100 * hami_vgpu_memory_used_bytes / (hami_vgpu_memory_limit_bytes > 0) > 95",
            "5m",
            {"severity": "warning"},
        ),
        ("HAMiSchedulerMetricsAbsent", "absent(hami_gpu_memory_limit_bytes)", "15m", {"severity": "critical"}),
    ]


def test_they_ask_for_series_and_labels_that_there_are() -> None:
    for rule in alerts({"rules": {"schedulerMetricsAbsent": {"enabled": True}}}):
        asked = set(re.findall(r"hami_\w+", rule["expr"]))
        assert asked
        assert asked <= set(LABELS)
        told = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["description"]))
        for name in asked:
            assert told <= LABELS[name]
        # Both sides of a division must have the same labels, or nothing ever matches.
        assert len({frozenset(LABELS[name]) for name in asked}) == 1


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ({}, ["HAMiGPUMemoryNearlyExhausted", "HAMiGPUCoresNearlyExhausted", "HAMivGPUMemoryNearLimit"]),
        (
            {"gpuMemoryNearlyExhausted": {"enabled": False}, "vgpuMemoryNearLimit": {"enabled": False}},
            ["HAMiGPUCoresNearlyExhausted"],
        ),
    ],
)
def test_each_can_be_left_out(rules: dict[str, Any], names: list[str]) -> None:
    assert [rule["alert"] for rule in alerts({"rules": rules})] == names


def test_thresholds_waits_severities_and_labels_are_the_owners() -> None:
    mine = {"vgpuMemoryNearLimit": {"threshold": 82.5, "for": "1h30m", "severity": "page"}}
    values = {"prometheus": {"enabled": True, "alerts": {"enabled": True, "rules": mine, "labels": {"release": "kps"}}}}
    rule = one(render(values, apis=APIS), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "kps"
    last = rule["spec"]["groups"][0]["rules"][-1]
    assert last["expr"].endswith("> 82.5")
    assert (last["for"], last["labels"]) == ("1h30m", {"severity": "page"})


@pytest.mark.parametrize(
    ("prometheus", "apis"),
    [
        ({"enabled": True, "alerts": {"enabled": True}}, ()),
        ({"enabled": False, "alerts": {"enabled": True}}, APIS),
        ({"enabled": True}, APIS),
        (
            {
                "enabled": True,
                "alerts": {
                    "enabled": True,
                    "rules": {
                        name: {"enabled": False}
                        for name in ("gpuMemoryNearlyExhausted", "gpuCoresNearlyExhausted", "vgpuMemoryNearLimit")
                    },
                },
            },
            APIS,
        ),
    ],
)
def test_nobody_gets_alerts_unasked_or_where_they_mean_nothing(
    prometheus: dict[str, Any], apis: tuple[str, ...]
) -> None:
    objects = render({"prometheus": prometheus}, apis=apis)
    assert objects
    assert not [each for each in objects if each["kind"] == "PrometheusRule"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": 101}, "vgpuMemoryNearLimit/threshold"),
        ({"for": "5"}, "vgpuMemoryNearLimit/for"),
        ({"for": None}, "missing property 'for'"),
    ],
)
def test_refusals(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RenderError, match=message):
        alerts({"rules": {"vgpuMemoryNearLimit": settings}})


def test_the_keys_are_known() -> None:
    assert "does not know" not in notes({"prometheus": {"alerts": {"rules": {"vgpuMemoryNearLimit": {"for": "1m"}}}}})
