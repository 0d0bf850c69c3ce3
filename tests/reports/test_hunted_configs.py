"""Reports beyond the list on device-config.yaml: what stands there twice, and values of another kind than is meant."""

from __future__ import annotations

import pytest

from hami.config import device_config
from hami.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nvidia:\n  defaultMemory: 1\n  defaultMemory: 2\n", "nvidia.defaultMemory stands twice, in lines 2 and 3"),
        ("nvidia:\n  defaultMemory: 1\n  'defaultMemory': 1\n", "nvidia.defaultMemory stands twice"),
        ("nvidia: {defaultMemory: 1, defaultCores: 5, defaultMemory: 1}", "nvidia.defaultMemory stands twice"),
        ("nvidia: {}\nhygon: {}\nnvidia:\n  defaultMemory: 5\n", "nvidia stands twice, in lines 1 and 3"),
        ("nvidia: {defaultCores: 1}\nvnpus: []\nvnpus: []\n", "vnpus stands twice"),
        (
            "nvidia:\n  migProfileAllowlist:\n  - models: [A30]\n    profiles: [1g.6gb]\n    models: [A100]\n",
            "nvidia.migProfileAllowlist.0.models stands twice, in lines 3 and 5",
        ),
        ("nvidia: {knownMigGeometries: [{models: [a], models: [b]}]}", "nvidia.knownMigGeometries.0.models"),
    ],
)
def test_hami_2940_a_key_that_stands_twice_is_told(text: str, words: str) -> None:
    """A file that was put together: which of the two resource names the cluster uses must not be left to the loader."""
    with pytest.raises(ConfigError, match=r"^f: .*: remove one") as error:
        device_config.parse(text, "f")
    assert words in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "nvidia: {defaultMemory: 7}\nvnpus:\n- chipName: 910A\n  chipName: 910B\n",
        "hygon: &base {defaultMemory: 1}\nnvidia:\n  <<: *base\n  defaultMemory: 7\n",
        "nvidia:\n  <<: [{defaultMemory: 1}, {defaultMemory: 2}]\n  defaultMemory: 7\n",
    ],
)
def test_hami_2940_control_other_vendors_and_merged_keys(text: str) -> None:
    """Sections that have no effect stop nothing; a merged key that is written out again is YAML's way to say so."""
    assert device_config.parse(text, "f").nvidia.default_memory == 7


@pytest.mark.parametrize("written", ["true", "no", "on"])
@pytest.mark.parametrize(
    "key",
    ["defaultGPUNum", "defaultMemory", "defaultCores", "memoryFactor", "deviceSplitCount", "deviceMemoryScaling"],
)
def test_hami_2940_a_switch_is_no_number(key: str, written: str) -> None:
    with pytest.raises(ConfigError, match=rf"nvidia\.{key}: (True|False) is not allowed"):
        device_config.parse(f"nvidia: {{{key}: {written}}}", "f")


@pytest.mark.parametrize(
    ("text", "value"), [("overwriteEnv: yes", True), ("overwriteEnv: 'true'", True), ("overwriteEnv: off", False)]
)
def test_hami_2940_control_switches(text: str, value: bool) -> None:
    assert device_config.parse(f"nvidia: {{{text}, defaultCores: 3}}", "f").nvidia.overwrite_env is value
