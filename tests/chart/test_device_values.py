"""Settings of cards where HAMi's chart has them after 2.10, below devices.nvidia, and where earlier ones have them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from hami.config import device_config
from hami.vendors.nvidia.config import NvidiaConfig
from tests.chart.nesting import nested
from tests.chart.rendering import Object, RenderError, notes, one, pod_spec, render

ALLOWLIST = [{"models": ["A30"], "profiles": ["1g.6gb", "2g.12gb"]}]


def written(values: dict[str, Any]) -> NvidiaConfig:
    """What scheduler and plugins read with these values."""
    text = one(render(values), "ConfigMap", "hami-scheduler-device")["data"]["device-config.yaml"]
    return device_config.parse(text, "device-config.yaml").nvidia


@pytest.mark.parametrize(
    ("key", "value", "field", "earlier"),
    [
        ("resourceCountName", "example.com/gpu", "resource_count_name", "resourceName"),
        ("resourceMemoryName", "example.com/mem", "resource_memory_name", "resourceMem"),
        ("resourceMemoryPercentageName", "example.com/pc", "resource_memory_percentage_name", "resourceMemPercentage"),
        ("resourceCoreName", "example.com/cores", "resource_core_name", "resourceCores"),
        ("resourcePriorityName", "example.com/rank", "resource_priority_name", "resourcePriority"),
        ("deviceSplitCount", 20, "device_split_count", "devicePlugin.deviceSplitCount"),
        ("deviceMemoryScaling", 1.5, "device_memory_scaling", "devicePlugin.deviceMemoryScaling"),
        ("deviceCoreScaling", 2.5, "device_core_scaling", "devicePlugin.deviceCoreScaling"),
        (
            "preConfiguredDeviceMemory",
            2_000_000,
            "pre_configured_device_memory",
            "devicePlugin.preConfiguredDeviceMemory",
        ),
        ("enableNumaTopology", True, "enable_numa_topology", "devicePlugin.enableNumaTopology"),
        ("runtimeClassName", "nvidia", "runtime_class_name", "devicePlugin.runtimeClassName"),
        ("defaultMemory", 4096, "default_memory", ""),
        ("defaultCores", 50, "default_cores", ""),
        ("defaultGPUNum", 0, "default_gpu_num", ""),
        ("memoryFactor", 1024, "memory_factor", ""),
        ("gpuCorePolicy", "force", "gpu_core_policy", ""),
        ("libCudaLogLevel", 4, "lib_cuda_log_level", ""),
    ],
)
def test_each_setting_is_written_from_either_place(key: str, value: Any, field: str, earlier: str) -> None:
    """HAMi #3152 moved them; an old file's and a new file's settings hold alike."""
    wanted = str(value) if field == "lib_cuda_log_level" else value
    assert getattr(written({}), field) != wanted
    assert getattr(written(nested(f"devices.nvidia.{key}", value)), field) == wanted
    if earlier:
        assert getattr(written(nested(earlier, value)), field) == wanted
    assert "does not know" not in notes(nested(f"devices.nvidia.{key}", value))


def test_the_later_place_goes_before_also_with_zero_and_false() -> None:
    later = {"enableNumaTopology": False, "preConfiguredDeviceMemory": 0, "deviceSplitCount": 3, "runtimeClassName": ""}
    earlier = {
        "enableNumaTopology": True,
        "preConfiguredDeviceMemory": 9,
        "deviceSplitCount": 7,
        "runtimeClassName": "x",
    }
    found = written({"devicePlugin": earlier, "devices": {"nvidia": later}})
    assert (found.enable_numa_topology, found.pre_configured_device_memory) == (False, 0)
    assert (found.device_split_count, found.runtime_class_name) == (3, "")
    assert written({"devicePlugin": earlier}).device_split_count == 7


def test_nothing_below_a_key_leaves_the_earlier_place_in_force() -> None:
    values = {"devicePlugin": {"deviceSplitCount": 7}, "devices": {"nvidia": {"deviceSplitCount": None}}}
    assert written(values).device_split_count == 7


def test_allowed_profiles_are_written() -> None:
    assert written({}).mig_profile_allowlist == ()
    found = written(nested("devices.nvidia.migProfileAllowlist", ALLOWLIST)).mig_profile_allowlist
    assert [(entry.models, entry.profiles) for entry in found] == [(("A30",), ("1g.6gb", "2g.12gb"))]


@pytest.mark.parametrize("place", ["devices.nvidia", "devicePlugin"])
def test_a_runtime_class_reaches_the_plugin_and_is_made(place: str) -> None:
    """HAMi #861, #1568: a cluster whose default runtime is another."""
    objects = render(nested(place, {"runtimeClassName": "nvidia", "createRuntimeClass": True}))
    assert pod_spec(objects, "DaemonSet")["runtimeClassName"] == "nvidia"
    assert one(objects, "RuntimeClass")["metadata"]["name"] == "nvidia"
    assert one(objects, "Pod")["spec"]["runtimeClassName"] == "nvidia"
    assert not [each for each in render({}) if each["kind"] == "RuntimeClass"]


def test_renamed_resources_reach_everybody() -> None:
    """HAMi #356 in the later place."""
    values = nested("devices.nvidia", {"resourceCountName": "example.com/gpu", "resourceMemoryName": "example.com/mem"})
    objects = render(values)
    limits = one(objects, "Pod")["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"example.com/gpu": 1, "example.com/mem": 100}
    config = yaml.safe_load(one(objects, "ConfigMap", "hami-scheduler")["data"]["config.yaml"])
    managed = {each["name"] for each in config["extenders"][0]["managedResources"]}
    assert {"example.com/gpu", "example.com/mem"} <= managed
    assert "nvidia.com/gpu" not in managed
    assert "resources      example.com/gpu, example.com/mem, " in notes(values)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("deviceSplitCount", 0),
        ("deviceSplitCount", "many"),
        ("deviceMemoryScaling", 0),
        ("defaultCores", 101),
        ("resourceCountName", "gpu"),
        ("runtimeClassName", "Not A Name"),
        ("migProfileAllowlist", {"A30": []}),
    ],
)
def test_wrong_settings_are_refused_with_their_key(key: str, value: Any) -> None:
    with pytest.raises(RenderError) as refused:
        render(nested(f"devices.nvidia.{key}", value))
    assert f"/devices/nvidia/{key}'" in str(refused.value)


@pytest.mark.parametrize("strategy", [{"type": "Recreate"}, {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}])
def test_the_schedulers_strategy_is_a_value(strategy: Object) -> None:
    objects = render({"scheduler": {"strategy": strategy}})
    assert one(objects, "Deployment")["spec"]["strategy"] == strategy
    assert one(render({"scheduler": {"strategy": {}}}), "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"


def test_oversold_memory_is_warned_of_from_either_place() -> None:
    for place in ("devices.nvidia", "devicePlugin"):
        assert "deviceMemoryScaling is 2: memory is oversold" in notes(nested(place, {"deviceMemoryScaling": 2}))
