"""device-config.yaml and config.json: upstream's files unchanged, and refusals that name key and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hami.config import device_config, node_config
from hami.core.errors import ConfigError
from hami.vendors.nvidia.config import NvidiaConfig

FILES = Path(__file__).parent / "files"


def test_the_charts_file_is_read_unchanged() -> None:
    config = device_config.read(FILES / "chart-device-config.yaml")
    assert config.nvidia.resource_memory_name == "nvidia.com/gpumem"
    assert config.nvidia.lib_cuda_log_level == "1"
    assert config.nvidia.mig_profile_allowlist[0].models == ("A30",)
    assert [note.rpartition("section ")[2].split()[0] for note in config.notes] == [
        "cambricon",
        "hygon",
        "iluvatars",
        "vnpus",
        "amd",
    ]


def test_keys_left_out_have_the_charts_defaults() -> None:
    assert device_config.parse("nvidia: {deviceSplitCount: 4}", "f").nvidia == NvidiaConfig(device_split_count=4)


def test_retired_geometries_are_named() -> None:
    config = device_config.parse("nvidia: {deviceSplitCount: 2, knownMigGeometries: []}", "f")
    assert "knownMigGeometries" in config.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["all configurations are empty"]),
        ("[]", ["all configurations are empty"]),
        ("nvidia: {deviceSplitCnt: 3}", ["nvidia.deviceSplitCnt", "did you mean deviceSplitCount"]),
        ("nvida: {deviceSplitCount: 3}", ["'nvida'", "did you mean nvidia"]),
        ("nvidia: {deviceSplitCount: 0}", ["nvidia.deviceSplitCount", "0", "greater than or equal to 1"]),
        ("nvidia: {deviceSplitCount: many}", ["nvidia.deviceSplitCount", "'many'"]),
        ("nvidia: {deviceMemoryScaling: -1}", ["nvidia.deviceMemoryScaling", "-1"]),
        ("nvidia: {deviceMemoryScaling: .nan}", ["nvidia.deviceMemoryScaling"]),
        ("nvidia: {gpuCorePolicy: sometimes}", ["nvidia.gpuCorePolicy", "'sometimes'", "'force'"]),
        ("nvidia: {memoryFactor: 99999999999}", ["nvidia.memoryFactor", "99999999999"]),
        ("nvidia: {resourceCountName: gpu}", ["nvidia.resourceCountName", "'gpu'"]),
        ("nvidia: {resourceCountName: kubernetes.io/gpu}", ["nvidia.resourceCountName", "'kubernetes.io/gpu'"]),
        ("nvidia: {resourceCoreName: x.kubernetes.io/cores}", ["nvidia.resourceCoreName", "keeps names"]),
        ("nvidia: {resourceMemoryName: requests.nvidia.com/mem}", ["nvidia.resourceMemoryName", "requests."]),
        (f"nvidia: {{resourceCountName: x.io/{'a' * 64}}}", ["nvidia.resourceCountName", "at most 63"]),
        ("nvidia: {runtimeClassName: Nvidia Runtime}", ["nvidia.runtimeClassName", "'Nvidia Runtime'"]),
        ("nvidia: {migProfileAllowlist: [{models: [], profiles: [1g.5gb]}]}", ["migProfileAllowlist.0.models"]),
        ("nvidia: {migProfileAllowlist: [{models: [A30], profiles: [small]}]}", ["'small'"]),
        ("nvidia: [1]", ["nvidia", "expected a mapping"]),
        ("nvidia: {a: [", ["no YAML"]),
    ],
)
def test_refusals_name_key_and_value(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        device_config.parse(text, "device-config.yaml")
    for word in ["device-config.yaml", *words]:
        assert word in str(refusal.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        device_config.read(tmp_path / "nowhere.yaml")


def node(tmp_path: Path, document: Any, name: str = "gpu-1") -> node_config.NodeConfig:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(document))
    return node_config.read(path, name, NvidiaConfig())


def test_matching_entries_apply_in_order(tmp_path: Path) -> None:
    entries = [
        {"name": "gpu-1", "devicememoryscaling": 3, "devicecorescaling": 3, "devicesplitcount": 10},
        {"name": "gpu-2", "devicesplitcount": 99},
        {
            "name": "gpu-1",
            "devicesplitcount": 4,
            "operatingmode": "mig",
            "filterdevices": {"uuid": ["GPU-x"], "index": [1]},
        },
    ]
    config = node(tmp_path, {"nodeconfig": entries})
    assert (config.nvidia.device_memory_scaling, config.nvidia.device_core_scaling) == (3, 3)
    assert config.nvidia.device_split_count == 4
    assert (config.mode, config.hidden_uuids, config.hidden_indexes) == ("mig", ("GPU-x",), (1,))
    assert config.notes == ()


def test_false_and_zero_override_where_they_mean_something(tmp_path: Path) -> None:
    config = node_config.NodeConfig(NvidiaConfig(enable_numa_topology=True))
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"nodeconfig": [{"name": "n", "enablenumatopology": False}]}))
    assert not node_config.read(path, "n", config.nvidia).nvidia.enable_numa_topology


def test_no_entry_for_this_node_names_the_nearest(tmp_path: Path) -> None:
    config = node(tmp_path, {"nodeconfig": [{"name": "gpu-01"}, {"name": "other"}]})
    assert "does not match" in config.notes[0]
    assert "'gpu-01'" in config.notes[0]
    assert "'gpu-1'" in config.notes[0]


def test_an_absent_file_is_a_note(tmp_path: Path) -> None:
    assert "does not exist" in node_config.read(tmp_path / "none.json", "n", NvidiaConfig()).notes[0]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"nodeconfig": [{"name": "n", "devicesplitcount": -1}]}, ["nodeconfig.0.devicesplitcount", "-1"]),
        (
            {"nodeconfig": [{"name": "n", "operatingmode": "shared"}]},
            ["nodeconfig.0.operatingmode", "'shared'", "'mig'"],
        ),
        ({"nodeconfig": [{"name": "n", "devicesplit": 3}]}, ["nodeconfig.0.devicesplit"]),
        ({"nodeconfig": [3]}, ["nodeconfig.0", "3"]),
        ({"nodes": []}, ["nodes", "known are nodeconfig"]),
        ({"cards": []}, ["cards: unknown key; known are nodeconfig"]),
        (
            {"nodeconfig": [{"name": "n", "filterdevice": {"index": [0]}}]},
            ["nodeconfig.0.filterdevice: unknown key; did you mean filterdevices?"],
        ),
        (
            {"nodeconfig": [{"name": "n", "filterdevices": {"uuids": ["GPU-1"]}}]},
            ["nodeconfig.0.filterdevices.uuids: unknown key; did you mean uuid?"],
        ),
        ({"nodeconfig": [{"name": "n", "xyz": 1}]}, ["unknown key; known are name,", "devicememoryscaling"]),
    ],
)
def test_node_file_refusals(tmp_path: Path, document: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as refusal:
        node(tmp_path, document, "n")
    for word in ["config.json", *words]:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "gpu-2", "devicesplitcount": -1}, ["nodeconfig.0.devicesplitcount", "-1"]),
        ({"name": "gpu-2", "typo": 1}, ["nodeconfig.0.typo"]),
        ({"devicesplitcount": 3}, ["nodeconfig.0.name"]),
    ],
)
def test_b85_a_wrong_entry_of_another_node_stops_that_node_only(
    tmp_path: Path, wrong: dict[str, Any], words: list[str]
) -> None:
    config = node(tmp_path, {"nodeconfig": [wrong, {"name": "gpu-1", "devicesplitcount": 4}]})
    assert config.nvidia.device_split_count == 4
    assert [note for note in config.notes if all(word in note for word in words)] == [*config.notes] != []
    if "name" in wrong:
        with pytest.raises(ConfigError):
            node(tmp_path, {"nodeconfig": [wrong]}, "gpu-2")


def test_keys_are_read_in_any_case_and_after_a_mark_of_the_encoding(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    text = '{"NodeConfig": [{"Name": "gpu-1", "DeviceSplitCount": 4, "filterDevices": {"UUID": ["GPU-Aa"]}}]}'
    path.write_text(text, encoding="utf-8-sig")
    config = node_config.read(path, "gpu-1", NvidiaConfig())
    assert (config.nvidia.device_split_count, config.hidden_uuids) == (4, ("GPU-Aa",))


def test_two_resources_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"nvidia\.resourceMemoryName: 'x/gpu' is the name of resourceCountName"):
        device_config.parse("nvidia: {resourceCountName: x/gpu, resourceMemoryName: x/gpu}", "f")


def test_broken_json_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"nodeconfig": [')
    with pytest.raises(ConfigError, match=r"config\.json"):
        node_config.read(path, "n", NvidiaConfig())


BOMB = "\n  ".join(
    [
        "nvidia:",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 7)),
        "defaultMemory: *a6",
    ]
)
"""A list of ten lists of ten lists: ten million items, if somebody wrote them out."""


@pytest.mark.parametrize(
    "text",
    [
        "nvidia: {deviceSplitCount: 2026-13-45}",
        "nvidia: {deviceSplitCount: !!int ten}",
        "nvidia: {deviceMemoryScaling: !!float much}",
        "nvidia: !!timestamp soon",
        "nvidia: " + "[" * 5000,
        "nvidia: {deviceMemoryScaling: .nan}",
        "nvidia: {deviceMemoryScaling: .inf}",
        "nvidia: &a {x: *a}",
        "nvidia: {1: 2}",
        "? [a]\n: b",
        "\x00",
        "nvidia: {overwriteEnv: !!bool maybe}",
        "nvidia: {defaultMemory: !!int ''}",
        "nvidia: {deviceMemoryScaling: !!float ''}",
        "nvidia: {deviceMemoryScaling: " + ":".join(["59"] * 400) + ".0}",
        "nvidia: {defaultMemory: 0x" + "f" * 6000 + "}",
        "nvidia: {runtimeClassName: " + "x" * 900_000 + "}",
        "nvidia:\n" + "".join(f"  k{number}: 1\n" for number in range(2000)),
        BOMB,
    ],
)
def test_odd_yaml_is_a_configuration_error(text: str) -> None:
    """Of a few thousand characters at most: it goes into a log line and an event."""
    with pytest.raises(ConfigError, match="the-file") as refusal:
        device_config.parse(text, "the-file")
    assert len(str(refusal.value)) < 5000


@pytest.mark.parametrize(
    "values",
    [{"preconfigureddevicememory": 2**31}, {"libcudaloglevel": "x;y"}, {"devicememoryscaling": float("nan")},
     {"devicesplitcount": -1}],
)  # fmt: skip
def test_numbers_of_a_node_that_no_register_can_carry(tmp_path: Path, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(values))):
        node(tmp_path, {"nodeconfig": [{"name": "gpu-1", **values}]})


def test_b101_ids_of_hidden_cards_are_stripped_and_blanks_skipped(tmp_path: Path) -> None:
    entry = {"name": "gpu-1", "filterdevices": {"uuid": [" GPU-b ", "", " "], "index": [0]}}
    config = node(tmp_path, {"nodeconfig": [entry]})
    assert (config.hidden_uuids, config.hidden_indexes) == (("GPU-b",), (0,))
