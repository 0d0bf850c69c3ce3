"""MIG in the chart: the strategy reaches the plugin, MIG capabilities only go to containers that may have them."""

from __future__ import annotations

from typing import Any

import pytest

from hami.config import device_plugin
from tests.chart.rendering import RenderError, container, render

MONITOR, CONFIG = "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_MIG_CONFIG_DEVICES"


@pytest.mark.parametrize("strategy", ["none", "single", "mixed"])
def test_the_strategy_reaches_the_plugin(strategy: str) -> None:
    plugin = container(render({"devicePlugin": {"migStrategy": strategy}}), "DaemonSet", "device-plugin")
    assert device_plugin.load(plugin["args"][1:], {"NODE_NAME": "n1"})[0].mig_strategy == strategy


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(RenderError, match="migStrategy"):
        render({"devicePlugin": {"migStrategy": "some"}})


@pytest.mark.parametrize(
    ("context", "granted"),
    [
        (None, set()),
        ({"privileged": True, "allowPrivilegeEscalation": True}, {MONITOR, CONFIG}),
        ({"capabilities": {"add": ["SYS_ADMIN"]}}, {MONITOR, CONFIG}),
        ({"capabilities": {"add": ["SYS_PTRACE"]}}, set()),
    ],
)
def test_the_runtime_is_asked_for_mig_only_where_it_grants_it(
    context: dict[str, Any] | None, granted: set[str]
) -> None:
    """NVIDIA's runtime does not start a container that asks without CAP_SYS_ADMIN."""
    values = {"devicePlugin": {"securityContext": context} if context else {}}
    plugin = container(render(values), "DaemonSet", "device-plugin")
    assert {each["name"] for each in plugin["env"]} & {MONITOR, CONFIG} == granted
    watcher = container(render(values), "DaemonSet", "vgpu-monitor")
    assert not {each["name"] for each in watcher["env"]} & {MONITOR, CONFIG}
    values = {"devicePlugin": {"monitor": {"securityContext": context} if context else {}}}
    watcher = container(render(values), "DaemonSet", "vgpu-monitor")
    assert {each["name"] for each in watcher["env"]} & {MONITOR, CONFIG} == granted - {CONFIG}
