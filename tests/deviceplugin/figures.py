"""What the device plugin costs: `python -m tests.deviceplugin.figures` (issue 7, "Figures"; part of `make bench`).

Allocate is set against a no-op call of the same server, asked in turn by one client in another process: over API
answers out of memory (what the plugin itself costs), and for information over the stand-in API server. RSS and start
are those of `hami device-plugin` as a process.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc.aio
import msgspec

from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_ALLOCATING
from hami.core.objects import Container, Node, ObjectMeta, Pod, PodSpec, PodStatus
from hami.core.token import encode_token
from hami.deviceplugin.allocate import Allocator
from hami.deviceplugin.board import Board
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.preferred import Preferences
from hami.deviceplugin.server import PluginServer
from hami.deviceplugin.servicer import DevicePluginServicer
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shared_cards import SharedCards
from hami.nvml.probe import CardFacts
from hami.nvml.simulated import made_uuid
from hami.obs import logs
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as rpc
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import ALLOCATED_KEY, TO_ALLOCATE_KEY
from tests.deviceplugin.bench import DEADLINE_S, NODE, Bench, RecordedEvents, bench
from tests.deviceplugin.memory_api import SeenMemoryApi

CARDS: Final = 8
REPLICAS: Final = 10
FLOORS: Final = {
    "Allocate p50, times a no-op call": 3.0,
    "ListAndWatch update of 80 replicas p50 (ms)": 2.0,
    "RSS (MiB)": 95.0,
}
_WARM_UP: Final = 10
Figures = dict[str, float]


class EndlessApi(SeenMemoryApi):
    """Hands the next pod over as soon as one is served, and tells the view as a watch does."""

    def __init__(self) -> None:
        super().__init__(NODE)
        self._made = 0
        self._next()

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> Node:
        node = await super().patch_node_annotations(name, annotations, resource_version)
        self._next()
        return node

    def _next(self) -> None:
        self._made += 1
        name = f"p{self._made}"
        work = f"{made_uuid(NODE, self._made % CARDS)},NVIDIA,3000,30:;"
        annotations = {BIND_PHASE: PHASE_ALLOCATING, TO_ALLOCATE_KEY: work, ALLOCATED_KEY: work}
        meta = ObjectMeta(
            name=name, namespace="default", uid=f"uid-{name}", resource_version="1", annotations=annotations
        )
        spec = PodSpec(node_name=NODE, containers=(Container(name="main"),))
        pod = Pod(meta, spec=spec, status=PodStatus(phase="Pending"))
        self.pods = {pod.key: pod}
        token = encode_token("default", name, 1_800_000_000)
        version = str(int(self.node.metadata.resource_version) + 1)
        given = msgspec.structs.replace(self.node.metadata, annotations={NODE_LOCK: token}, resource_version=version)
        self.node = msgspec.structs.replace(self.node, metadata=given)
        self.view.pods_listed([pod])
        self.view.node_seen(self.node)


def settings_in(folder: Path) -> PluginSettings:
    """A host with the library in place, all below `folder`."""
    vgpu = folder / "hook/vgpu"
    vgpu.mkdir(parents=True, exist_ok=True)
    (vgpu / "libvgpu.so").touch()
    (vgpu / "ld.so.preload").write_text(f"{folder}/hook/vgpu/libvgpu.so\n")
    return PluginSettings(
        NODE,
        NvidiaConfig(device_split_count=REPLICAS),
        kubelet_dir=folder,
        hook_path=folder / "hook",
        lock_dir=folder / "lock",
        cdi_root=folder / "cdi",
    )


@asynccontextmanager
async def plugin_server(folder: Path) -> AsyncIterator[Board]:
    """The plugin's gRPC server on `folder`/p.sock, over answers out of memory."""
    settings = settings_in(folder)
    board, api = Board(settings), EndlessApi()
    cards = (CardFacts(made_uuid(NODE, index), index, "T4", 1 << 34) for index in range(CARDS))
    await board.set_cards(tuple(cards))
    allocator = Allocator(settings, board, api.view, api, RecordedEvents(), ContainerSetup(settings), None, lambda: 1)
    served = SharedCards(settings, allocator, Preferences(settings, api.view, api))
    async with PluginServer(folder / "p.sock", DevicePluginServicer(board, served)):
        yield board


async def serve(folder: Path) -> None:
    """Serves until killed (a process of its own)."""
    async with plugin_server(folder):
        print("ready", flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def served_elsewhere(folder: Path) -> AsyncIterator[Any]:
    """A stub of a server in another process."""
    command = [sys.executable, "-m", "tests.deviceplugin.figures", "--serve", str(folder)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).strip() == b"ready"
        async with grpc.aio.insecure_channel(f"unix://{folder}/p.sock") as channel:
            yield rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
    finally:
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()


async def in_turn(calls: int, *ways: Callable[[], Awaitable[object]]) -> list[list[float]]:
    """Milliseconds of each call, the ways asked one after another so that a busy machine hits all alike."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(calls):
        for way, found in zip(ways, times, strict=True):
            began = time.perf_counter()
            await way()
            found.append((time.perf_counter() - began) * 1e3)
    return times


async def allocate(calls: int) -> Figures:
    """Allocate against a no-op call of the same server."""
    with tempfile.TemporaryDirectory(prefix="hami-dp-", dir=memory_folder()) as folder:
        async with served_elsewhere(Path(folder)) as stub:
            request = pb.AllocateRequest(
                container_requests=[pb.ContainerAllocateRequest(devices_ids=[f"{made_uuid(NODE, 0)}-0"])]
            )
            noop = pb.PreStartContainerRequest()
            await in_turn(calls // 10, lambda: stub.PreStartContainer(noop), lambda: stub.Allocate(request))
            idle, work = await in_turn(calls, lambda: stub.PreStartContainer(noop), lambda: stub.Allocate(request))
    return {
        "no-op call p50 (ms)": statistics.median(idle),
        "Allocate p50 (ms)": statistics.median(work),
        "Allocate p99 (ms)": statistics.quantiles(work, n=100)[98],
        "Allocate p50, times a no-op call": statistics.median(work) / statistics.median(idle),
    }


async def updates(calls: int) -> Figures:
    """From a card's change of health to the list at the client, 80 replicas."""
    times = []
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as folder:
        async with (
            plugin_server(Path(folder)) as board,
            grpc.aio.insecure_channel(f"unix://{folder}/p.sock") as channel,
        ):
            stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
            stream = stub.ListAndWatch(pb.Empty())
            assert len((await stream.read()).devices) == CARDS * REPLICAS
            for turn in range(calls):
                began = time.perf_counter()
                await board.set_unhealthy({made_uuid(NODE, turn % CARDS): str(turn)})
                await stream.read()
                times.append((time.perf_counter() - began) * 1e3)
            stream.cancel()
    return {"ListAndWatch update of 80 replicas p50 (ms)": statistics.median(times)}


async def process(calls: int) -> Figures:
    """`hami device-plugin` over the stand-ins: start to registered, Allocate with its write, memory."""
    with tempfile.TemporaryDirectory(prefix="hami-dp-", dir=memory_folder()) as folder:
        async with bench(Path(folder)) as node:
            began = time.perf_counter()
            nowhere = asyncio.subprocess.DEVNULL
            running = await asyncio.create_subprocess_exec(*_command(node), stdout=nowhere, stderr=nowhere)
            try:
                await node.until(lambda: node.kubelet.devices, "the device list")
                started_s = time.perf_counter() - began
                turns = await _pods_in_turn(node, calls)
                rss_mib = _rss_mib(running.pid)
            finally:
                os.kill(running.pid, signal.SIGTERM)
                await running.wait()
    return {
        "start to registered (s)": started_s,
        "Allocate over the stand-in API server p50 (ms)": statistics.median(turns.served),
        "the same, times a no-op call": statistics.median(turns.served) / statistics.median(turns.idle),
        "from its begin to a free token p50 (ms)": statistics.median(turns.handed_on),
        "of its Allocates, with a live read": float(turns.reads),
        "RSS (MiB)": rss_mib,
    }


class _Turns(NamedTuple):
    """Milliseconds of no-ops, of Allocates, and from an Allocate's begin to a free token; how many had to read."""

    idle: list[float]
    served: list[float]
    handed_on: list[float]
    reads: int


async def _pods_in_turn(node: Bench, calls: int) -> _Turns:
    """Each is the first call after a pod's Binding, a no-op at one pod and Allocate at the next: what a process needs
    to wake up is in both."""
    noop = pb.PreStartContainerRequest()
    idle: list[float] = []
    served: list[float] = []
    handed_on: list[float] = []
    reads = 0
    for number in range(-_WARM_UP, 2 * calls):
        card = made_uuid(NODE, number % CARDS)
        await node.bound_pod(f"p{number + _WARM_UP}", f"{card},NVIDIA,3000,30:;")
        if number % 2 == 0:
            ((took_ms,),) = await in_turn(1, lambda: node.kubelet.plugin.PreStartContainer(noop))
            if number >= 0:
                idle.append(took_ms)
        node.api.seen.clear()
        began = time.perf_counter()
        ((took_ms,),) = await in_turn(1, functools.partial(node.kubelet.allocate, [f"{card}-0"]))
        await _released(node)
        free_ms = (time.perf_counter() - began) * 1e3
        if number >= 0 and number % 2:
            served.append(took_ms)
            handed_on.append(free_ms)
            reads += any(each.verb == "get" for each in node.api.seen)
        await node.token_free()
    return _Turns(idle, served, handed_on, reads)


async def _released(node: Bench) -> None:
    """Waits for the write that takes the token off the node; a heartbeat in these milliseconds is taken for it."""
    async with asyncio.timeout(DEADLINE_S):
        while not any(each.verb == "patch" and each.resource == "nodes" for each in node.api.seen):  # noqa: ASYNC110
            await asyncio.sleep(0)


def _command(node: Bench) -> list[str]:
    config = node.folder / "device-config.yaml"
    config.write_text(f"nvidia: {{deviceSplitCount: {REPLICAS}}}\n")
    node.profile.write_text(f"cards: [{{model: NVIDIA A100-SXM4-80GB, count: {CARDS}, memory_mib: 81920}}]\n")
    return [
        sys.executable, "-c", "import sys; from hami.apps.cli import main; sys.exit(main())", "device-plugin",
        f"--kubeconfig={node.folder}/kubeconfig", f"--node-name={NODE}", f"--device-config-file={config}",
        f"--kubelet-dir={node.kubelet.folder}", f"--hook-path={node.folder}/hook", f"--lock-dir={node.folder}/lock",
        f"--nvml=sim:{node.profile}", "--metrics-bind-address=127.0.0.1:0",
    ]  # fmt: skip


def _rss_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) / 1024


def memory_folder() -> str | None:
    """A folder in memory, where there is one: a disk's flush is not the plugin's cost."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


async def measure(calls: int) -> Figures:
    return {**await allocate(calls), **await updates(calls // 5), **await process(max(10, calls // 20))}


def over(found: Figures) -> list[str]:
    """Which figures are over their floors."""
    return [f"{name}: {found[name]:.2f}, floor {floor:g}" for name, floor in FLOORS.items() if found[name] > floor]


def main() -> int:
    """Prints a line for each figure; with `--strict`, 1 where one is over its floor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--strict", action="store_true", help="end with 1 where a figure is over its floor")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logs.configure(0)
    if options.serve is not None:
        asyncio.run(serve(options.serve))
        return 0
    found = asyncio.run(measure(options.calls))
    for name, value in found.items():
        floor = f"  floor {FLOORS[name]:g}" if name in FLOORS else ""
        print(f"device plugin: {name:<48} {value:8.2f}{floor}")
    for problem in over(found):
        print(f"device plugin: OVER {problem}", file=sys.stderr)
    return 1 if options.strict and over(found) else 0


if __name__ == "__main__":
    sys.exit(main())
