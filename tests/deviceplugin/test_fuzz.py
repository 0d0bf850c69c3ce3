"""20,000 random cases in CI (`make soak`: ten times that): nothing crashes, refusals are clear, no stranger is served.

7,000 Allocate calls over random pods, annotations and tokens; 5,000 config.json, 3,000 device-config.yaml, 2,500 raw
gRPC messages and 2,500 preferences over the wire.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hami.config import device_config, node_config
from hami.core.codec import decode_shares
from hami.core.errors import AllocateError, ConfigError, DecodeError, HamiError
from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING, PHASE_FAILED, PHASE_SUCCESS
from hami.core.model import INT32_MAX
from hami.core.objects import Container, Node, ObjectMeta, Pod, PodSpec, PodStatus
from hami.core.token import encode_token
from hami.deviceplugin.allocate import Allocator
from hami.deviceplugin.board import Board
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.node_view import NodeView
from hami.deviceplugin.preferred import Preferences
from hami.deviceplugin.server import PluginServer
from hami.deviceplugin.servicer import DevicePluginServicer
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shared_cards import SharedCards
from hami.nvml.probe import CardFacts
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import ALLOCATED_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.bench import NODE, A, B, RecordedEvents
from tests.deviceplugin.memory_api import MemoryApi

SOAK = 10 if os.environ.get("HAMI_SOAK", "0") not in ("", "0") else 1


def cases(count: int) -> settings:
    return settings(max_examples=count * SOAK, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def check_words(refusal: HamiError, *wanted: str) -> None:
    """A refusal is a sentence that names what it is about."""
    text = str(refusal)
    assert len(text) > len("".join(wanted)) + 10
    assert all(word in text for word in wanted)
    assert "Traceback" not in text


class World:
    """A plugin's Allocate over pods in memory, files in a folder, one loop for all cases."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        vgpu = folder / "hook/vgpu"
        vgpu.mkdir(parents=True)
        (vgpu / "libvgpu.so").touch()
        (vgpu / "ld.so.preload").write_text(f"{folder}/hook/vgpu/libvgpu.so\n")
        self.settings = PluginSettings(
            NODE, kubelet_dir=folder, hook_path=folder / "hook", lock_dir=folder / "lock", cdi_root=folder / "cdi"
        )
        self.api = MemoryApi(NODE)
        self.view = NodeView(NODE, time.monotonic)
        self.events = RecordedEvents()
        self.board = Board(self.settings)
        cards = tuple(CardFacts(uuid, index, "T4", 1 << 34) for index, uuid in enumerate((A, B)))
        self.loop.run_until_complete(self.board.set_cards(cards))
        self.allocator = Allocator(
            self.settings, self.board, self.view, self.api, self.events, ContainerSetup(self.settings), None, lambda: 1
        )

    def put(self, pods: Sequence[Pod], token: str | None) -> None:
        self.api.pods = {pod.key: pod for pod in pods}
        annotations = {} if token is None else {NODE_LOCK: token}
        self.api.node = Node(ObjectMeta(name=NODE, annotations=annotations, resource_version="1"))
        self.events.on_pods.clear()
        self.events.on_nodes.clear()

    def served(self) -> SharedCards:
        return SharedCards(self.settings, self.allocator, Preferences(self.settings, self.view, self.api))


@pytest.fixture(scope="module", autouse=True)
def quiet_logs() -> Iterator[None]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hami-dp-", dir=place) as folder:
        made = World(Path(folder))
        yield made
        made.loop.run_until_complete(made.loop.shutdown_default_executor())
        made.loop.close()


# --- Allocate ------------------------------------------------------------------------------------------------------

ids = st.sampled_from([f"{A}-0", f"{A}-1", f"{B}-0", f"{B}-7", f"{A}::2", A])
odd_ids = st.one_of(st.sampled_from(["", "GPU-gone-1", f"{A}-x", "\u00e9", "::"]), st.text(max_size=20))
requests = st.lists(
    st.one_of(st.lists(ids, min_size=1, max_size=2), st.lists(st.one_of(ids, odd_ids), max_size=3)),
    min_size=1,
    max_size=2,
)
numbers = st.one_of(
    st.integers(0, 20_000).map(str),
    st.sampled_from(["-1", "0", str(INT32_MAX), str(INT32_MAX + 1), "9" * 40, "1e3", "", "x", " 1", "\u0663"]),
)
share = st.builds(
    lambda *parts: ",".join(parts) + ":",
    st.sampled_from([A, B, A, B, A, "GPU-gone", ""]),
    st.sampled_from(["NVIDIA", "NVIDIA", "GPU", "DCU", ""]),
    st.one_of(st.integers(0, 20_000).map(str), numbers),
    st.one_of(st.integers(0, 100).map(str), numbers),
)
good_share = st.builds(
    lambda card, memory, core: f"{card},NVIDIA,{memory},{core}:",
    st.sampled_from([A, B]),
    st.integers(0, 20_000),
    st.integers(0, 100),
)
segments = st.lists(st.lists(good_share, max_size=2).map("".join), max_size=4).map(
    lambda parts: "".join(part + ";" for part in parts)
)
odd_text = st.one_of(
    st.lists(st.lists(share, max_size=2).map("".join), max_size=4).map(";".join),
    st.text(alphabet=",:;-0159AGNPUVDI", max_size=60),
    st.text(max_size=30),
)
work = st.one_of(segments, segments, segments, odd_text)
phases = st.sampled_from([PHASE_ALLOCATING] * 6 + [PHASE_SUCCESS, PHASE_FAILED, "", "unheard-of"])


def pod(name: str) -> st.SearchStrategy[Pod]:
    """A pod as somebody left it."""
    return st.builds(_pod, st.just(name), work, phases, kinds, where)


kinds = st.sampled_from(
    [(record, containers, init) for record in ("same", "same", "", "garbage,", "none") for containers in (1, 2, 3)
     for init in (0, 1)]
)  # fmt: skip
where = st.sampled_from(
    [(node, phase) for node in [NODE] * 5 + ["n2", ""] for phase in ["Pending"] * 6 + ["", "Running", "Failed"]]
)


def _pod(name: str, text: str, bind_phase: str, kind: tuple[str, int, int], place: tuple[str, str]) -> Pod:
    record, containers, init = kind
    annotations = {BIND_PHASE: bind_phase, ALLOCATED_KEY: text if record == "same" else record}
    if record != "none":
        annotations[TO_ALLOCATE_KEY] = text
    return Pod(
        ObjectMeta(name=name, namespace="default", uid=f"uid-{name}", resource_version="1", annotations=annotations),
        spec=PodSpec(
            node_name=place[0],
            containers=tuple(Container(name=f"c{number}") for number in range(containers)),
            init_containers=tuple(Container(name=f"i{number}") for number in range(init)),
        ),
        status=PodStatus(phase=place[1]),
    )


pods_on_a_node = st.one_of(
    st.tuples(pod("p0")), st.tuples(pod("p0"), pod("p1")), st.tuples(pod("p0"), pod("p1"), pod("p2"))
)


tokens = st.one_of(
    st.none(),
    st.sampled_from([encode_token("default", f"p{number}", 1_800_000_000) for number in range(4)]),
    st.sampled_from(["2026-01-02T03:04:05Z", "", "a,b,c,d", "no time,default,p0"]),
    st.text(max_size=20),
)


def _segments(waiting: Pod) -> list[Any] | None:
    try:
        return list(decode_shares(waiting.annotations.get(TO_ALLOCATE_KEY, ""), "test"))
    except DecodeError:
        return None


def _may_be_served(waiting: Pod, count: int) -> bool:
    here = waiting.spec.node_name == NODE and waiting.status.phase in ("", "Pending")
    found = _segments(waiting)
    return (
        here
        and waiting.annotations.get(BIND_PHASE) == PHASE_ALLOCATING
        and found is not None
        and any(len(shares) == count for shares in found if shares)
    )


def _expected(pods: Sequence[Pod], token: str | None, count: int) -> str | None:
    """Whom a call for `count` devices is for, written from design 3 alone; None for nobody."""
    able = [each for each in pods if _may_be_served(each, count)]
    for each in able:
        if token is not None and token.endswith(f",default,{each.metadata.name}") and token.count(",") == 2:
            return each.key
    return able[0].key if len(able) == 1 else None


def check_allocate(world: World, pods: tuple[Pod, ...], token: str | None, asked: list[list[str]]) -> None:
    before = {each.key: each for each in pods}
    world.put(list(before.values()), token)
    try:
        answer = world.loop.run_until_complete(world.allocator.allocate(asked))
    except AllocateError as refusal:
        answer = None
        check_words(refusal)
    world.loop.run_until_complete(world.allocator.drain())
    changed = {key for key, each in world.api.pods.items() if each != before[key]}
    assert len(changed) <= 1, "one call concerns one pod"
    if not changed:
        assert answer is None
        return
    (key,) = changed
    after = world.api.pods[key]
    if answer is None:
        assert after.annotations[BIND_PHASE] == PHASE_FAILED
        assert after.annotations.get(TO_ALLOCATE_KEY) == before[key].annotations.get(TO_ALLOCATE_KEY)
        assert [name for name, _, _ in world.events.on_pods] == [after.metadata.name]
    else:
        assert key == _expected(list(before.values()), token, len(asked[0]))
        found = [shares for shares in _segments(before[key]) or [] if shares]
        for edits, wanted in zip(answer, asked, strict=True):
            envs = dict(edits.envs)
            limits = [envs[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"] for index in range(len(wanted))]
            assert f"CUDA_DEVICE_MEMORY_LIMIT_{len(wanted)}" not in envs
            assert limits in [[f"{share.memory_mib}m" for share in shares] for shares in found]
            assert all(f"/{after.metadata.uid}_" in mount.host_path for mount in edits.mounts[1:2])


def test_allocate_serves_whom_it_must_or_refuses_clearly(world: World) -> None:
    @cases(7000)
    @given(pods=pods_on_a_node, token=tokens, asked=requests)
    def run(pods: tuple[Pod, ...], token: str | None, asked: list[list[str]]) -> None:
        check_allocate(world, pods, token, asked)

    run()
    ends = world.allocator.stats
    assert min(ends.served, ends.refused, ends.failed) > 50, f"each end is reached: {ends}"


# --- configuration -------------------------------------------------------------------------------------------------

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


# --- over the wire -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def channel(world: World) -> Iterator[grpc.aio.Channel]:
    path = world.settings.kubelet_dir / "p.sock"
    server = PluginServer(path, DevicePluginServicer(world.board, world.served()))
    world.loop.run_until_complete(server.start())
    made = world.loop.run_until_complete(_dial(path))
    yield made
    world.loop.run_until_complete(made.close())
    world.loop.run_until_complete(server.stop())


async def _dial(path: Path) -> grpc.aio.Channel:
    made = grpc.aio.insecure_channel(f"unix://{path}")
    await made.channel_ready()
    return made


def ask(world: World, channel: grpc.aio.Channel, method: str, body: bytes) -> tuple[grpc.StatusCode, bytes | str]:
    async def call() -> tuple[grpc.StatusCode, bytes | str]:
        try:
            asked: Any = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
            return grpc.StatusCode.OK, await asked(body)
        except grpc.aio.AioRpcError as error:
            return error.code(), str(error.details())

    return world.loop.run_until_complete(asyncio.wait_for(call(), 60))


messages = st.one_of(
    st.binary(max_size=60),
    requests.map(
        lambda asked: pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=_sendable(ids)) for ids in asked]
        ).SerializeToString()
    ),
)


def _sendable(texts: list[str]) -> list[str]:
    return [text.encode("utf-8", "replace").decode() for text in texts]


@cases(2500)
@given(waiting=pod("p0"), body=messages)
def test_any_message_is_answered_or_refused(world: World, channel: grpc.aio.Channel, waiting: Pod, body: bytes) -> None:
    world.put([waiting], None)
    status, answer = ask(world, channel, "Allocate", body)
    if status is grpc.StatusCode.OK:
        assert isinstance(answer, bytes)
        pb.AllocateResponse.FromString(answer)
    elif status is grpc.StatusCode.FAILED_PRECONDITION:
        assert len(answer) > 20
    else:
        # gRPC itself says no to what is no message, before the plugin hears of it.
        assert status is grpc.StatusCode.UNKNOWN
        with pytest.raises(Exception, match=r"."):
            pb.AllocateRequest.FromString(body)
        assert world.api.pods[waiting.key] == waiting


@cases(2500)
@given(
    waiting=pod("p0"),
    available=st.lists(st.one_of(ids, odd_ids), max_size=6),
    must=st.lists(st.one_of(ids, odd_ids), max_size=3),
    size=st.one_of(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1)),
)
def test_a_preference_is_never_an_error(
    world: World, channel: grpc.aio.Channel, waiting: Pod, available: list[str], must: list[str], size: int
) -> None:
    world.put([waiting], None)
    available, must = _sendable(available), _sendable(must)
    request = pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
            )
        ]
    )
    status, answer = ask(world, channel, "GetPreferredAllocation", request.SerializeToString())
    assert status is grpc.StatusCode.OK
    assert isinstance(answer, bytes)
    (chosen,) = pb.PreferredAllocationResponse.FromString(answer).container_responses
    assert set(chosen.deviceIDs) <= {*available, *must}
    if chosen.deviceIDs:
        assert len(chosen.deviceIDs) == size
        assert all(must.count(each) <= list(chosen.deviceIDs).count(each) for each in must)
    assert world.api.pods[waiting.key] == waiting
