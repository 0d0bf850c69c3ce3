"""5,000 random config.json and 3,000 device-config.yaml (`make soak`: ten times that): taken, or refused by name."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hami.config import device_config, node_config
from hami.core.errors import ConfigError
from hami.core.model import INT32_MAX
from hami.vendors.nvidia.config import NvidiaConfig
from tests.deviceplugin.bench import NODE
from tests.deviceplugin.fuzz_world import World, cases, check_words

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 20),
    st.sampled_from([2**31 - 1, 2**31, 2**70, -1, 1e308]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)
values = st.one_of(
    scalars,
    st.sampled_from(
        [
            [],
            {},
            [[]],
            {"": {}},
            [1, "a", None],
            {"index": [-1]},
            {"index": 0},
            {"uuid": [1]},
            {"uuid": ["GPU-a"], "x": 1},
        ]
    ),
)
node_keys = st.sampled_from(
    [
        "name", "operatingmode", "migstrategy", "devicesplitcount", "devicememoryscaling", "devicecorescaling",
        "preconfigureddevicememory", "libcudaloglevel", "enablenumatopology", "filterdevices",
        "enablegetpreferredallocation", "unheard-of",
    ]
)  # fmt: skip
likely = {
    "name": st.just(NODE),
    "devicesplitcount": st.integers(1, 20),
    "devicememoryscaling": st.floats(0.5, 4),
    "operatingmode": st.sampled_from(["hami-core", "mig", "mps"]),
    "filterdevices": st.fixed_dictionaries({"index": st.lists(st.integers(0, 3), max_size=2)}),
}


@st.composite
def node_entry(draw: st.DrawFn) -> Any:
    if draw(st.integers(0, 15)) == 0:
        return draw(values)
    chosen = draw(st.lists(node_keys, max_size=4, unique=True))
    entry = {key: draw(likely.get(key, values) if draw(st.booleans()) else values) for key in chosen}
    return {"name": NODE, **entry}


node_files = st.one_of(
    st.lists(node_entry(), max_size=3).map(lambda entries: json.dumps({"nodeconfig": entries})),
    values.map(json.dumps),
    st.text(max_size=40),
)


@cases(5000)
@given(text=node_files)
def test_a_config_json_is_taken_or_refused_by_name(world: World, text: str) -> None:
    path = world.settings.kubelet_dir / "config.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        config = node_config.read(path, NODE, NvidiaConfig())
    except ConfigError as refusal:
        check_words(refusal, str(path))
        return
    assert config.mode in ("hami-core", "mig", "mps")
    assert 1 <= config.nvidia.device_split_count <= 10_000
    assert 0 < config.nvidia.device_memory_scaling <= 1000
    assert 0 < config.nvidia.device_core_scaling <= 1000
    assert 0 <= config.nvidia.pre_configured_device_memory <= INT32_MAX
    assert all(index >= 0 for index in config.hidden_indexes)


device_keys = st.sampled_from(
    ["resourceCountName", "deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling", "defaultMemory",
     "defaultCores", "defaultGPUNum", "memoryFactor", "libCudaLogLevel", "preConfiguredDeviceMemory",
     "enableNumaTopology", "disableCoreLimit", "gpuCorePolicy", "migProfileAllowlist", "unheardOf"]
)  # fmt: skip
device_files = st.one_of(
    st.dictionaries(device_keys, values, max_size=4).map(lambda section: json.dumps({"nvidia": section})),
    values.map(json.dumps),
    st.text(alphabet="nvidia: {}[]-&*!|>\n\t'\"%@`#,?", max_size=40),
)


@cases(3000)
@given(text=device_files)
def test_a_device_config_is_taken_or_refused_by_name(world: World, text: str) -> None:
    path = world.settings.kubelet_dir / "device-config.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        config = device_config.read(path)
    except ConfigError as refusal:
        check_words(refusal, str(path))
        return
    assert config.nvidia.device_split_count >= 1
    assert "/" in config.nvidia.resource_count_name or config.nvidia.resource_count_name
