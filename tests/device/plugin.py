"""The device plugin on a machine that has a GPU and its driver: `python3 -m tests.device.plugin`, under two minutes.

Needs this repository and a Python with hami's packages; no cluster, no kubelet, no root. The driver is read for real;
kubelet and API server are the stand-ins of the tests. Prints one line a check and ends with 1 when one failed. The same
script runs over the stand-in driver in tests/nvml/test_device_script.py (issue 7).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc.aio
import structlog

from hami.core.codec import decode_register
from hami.core.errors import NvmlError
from hami.deviceplugin.plugin import Plugin
from hami.deviceplugin.settings import PluginSettings
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.nvml.probe import Cards
from hami.nvml.real import RealProbe
from hami.vendors.nvidia.names import REGISTER_KEY
from tests.deviceplugin.bench import DEADLINE_S, NODE, Bench, bench

MIB = 1024 * 1024
CALLS = 50
LIMIT_S = 110.0


class Checks:
    """Prints each check and counts those that failed."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, what: str, fine: object, seen: object = "") -> None:
        self.failed += not fine
        print(f"{'ok  ' if fine else 'FAIL'} {what}: {seen}", flush=True)

    def note(self, text: str) -> None:
        print(f"--   {text}", flush=True)


async def check_probe(checks: Checks, probe: RealProbe) -> Cards:
    """Every question that the plugin asks the driver, each with its time limit."""
    began = time.monotonic()
    found = await probe.cards()
    checks.note(f"driver {found.driver_version}, {len(found.cards)} cards, {(time.monotonic() - began) * 1e3:.0f} ms")
    for card in found.cards:
        size = "no memory query" if card.memory_bytes is None else f"{card.memory_bytes // MIB} MiB"
        checks.note(f"{card.index} {card.uuid} {card.name} {size} numa {card.numa} mig {card.mig_enabled}")
    checks.check("cards are read", found.cards and not found.problems, found.problems or len(found.cards))
    checks.check("ids are the driver's", all(card.uuid.startswith("GPU-") for card in found.cards))
    checks.check("names are text", all(card.name.isprintable() and card.name for card in found.cards))
    loads = await probe.loads()
    checks.check("loads are read", [load.uuid for load in loads] == [card.uuid for card in found.cards], loads[:1])
    checks.check("nobody is lost", await probe.lost() == {})
    checks.check("nobody is damaged", await probe.damaged() == {})
    pairs = await probe.pairs()
    checks.check("links are read", len(pairs) == len(found.cards) * (len(found.cards) - 1) // 2, pairs[:2])
    try:
        events = await probe.events(0.2)
        checks.check("error events are waited for", all(event.kind == "no-events" for event in events), events)
    except NvmlError as error:
        checks.note(f"no error events here: {error}")
    checks.note(f"processes on the cards: {len(await probe.processes())}")
    return found


async def check_register(checks: Checks, node: Bench, cards: Cards) -> None:
    """What kubelet and the scheduler are told is what the driver said."""
    shared = [card for card in cards.cards if not card.mig_enabled]
    wanted = [f"{card.uuid}-{number}" for card in shared for number in range(3)]
    checks.check("kubelet has every replica", list(node.kubelet.devices) == wanted, len(node.kubelet.devices))
    checks.check("all are healthy", set(node.kubelet.devices.values()) == {"Healthy"})
    text = ""
    async with asyncio.timeout(DEADLINE_S):
        while not text:
            text = (await node.node()).annotations.get(REGISTER_KEY, "")
            await asyncio.sleep(0.02)
    devices = decode_register(text, "NVIDIA", "node")
    seen = [(device.id, device.index, device.memory_mib) for device in devices]
    told = [(card.uuid, card.index, card.memory_bytes // MIB) for card in shared if card.memory_bytes is not None]
    checks.check("the register is the driver's list", seen == told, text[:200])
    checks.check("types carry the vendor", all(device.type.startswith("NVIDIA") for device in devices))


async def check_allocate(checks: Checks, node: Bench, cards: Cards) -> None:
    """A pod's container is shown its card with its limit, and only its own."""
    card = next(card for card in cards.cards if not card.mig_enabled)
    await node.bound_pod("p1", f"{card.uuid},NVIDIA,1024,30:;")
    ids = await node.kubelet.prefer(list(node.kubelet.devices), [], 1)
    checks.check("kubelet is told which card", [each.rpartition("-")[0] for each in ids] == [card.uuid], ids)
    answer = (await node.kubelet.allocate(ids)).container_responses[0]
    envs = dict(answer.envs)
    checks.check("the container sees its card", envs.get("NVIDIA_VISIBLE_DEVICES") == card.uuid)
    checks.check("with its limit", envs.get("CUDA_DEVICE_MEMORY_LIMIT_0") == "1024m")
    nodes = [device.host_path for device in answer.devices]
    missing = await asyncio.to_thread(lambda: [path for path in nodes if not Path(path).exists()])
    checks.check("device nodes are there", nodes and not missing, missing or nodes)
    checks.check("the pod is done", await node.phase("p1") == "success")
    await node.token_free()
    spec = (node.folder / "cdi/k8s.device-plugin.nvidia.com-gpu.json").read_text()
    checks.check("CDI names the card", f'"{card.uuid}"' in spec)
    checks.note(f"CDI mounts the driver's libcuda: {'libcuda.so.' in spec}")
    await node.bound_pod("p2", "GPU-gone,NVIDIA,1024,30:;")
    refusal = ""
    try:
        await node.kubelet.allocate(ids)
    except grpc.aio.AioRpcError as error:
        refusal = str(error.details())
    checks.check("a card that is not here is refused", "GPU-gone" in refusal, refusal)
    checks.check("and its pod failed", await node.phase("p2") == "failed")


async def note_cost(checks: Checks, node: Bench, cards: Cards) -> None:
    """Printed, not judged."""
    card = next(card for card in cards.cards if not card.mig_enabled)
    times = []
    for number in range(CALLS):
        await node.bound_pod(f"cost-{number}", f"{card.uuid},NVIDIA,1024,30:;")
        began = time.perf_counter()
        await node.kubelet.allocate([f"{card.uuid}-0"])
        times.append((time.perf_counter() - began) * 1e3)
    times.sort()
    checks.note(f"Allocate with its API requests: p50 {times[CALLS // 2]:.2f} ms, slowest {times[-1]:.2f} ms")
    checks.note(
        f"memory of this process, stand-ins included: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB"
    )


def plugin_settings(node: Bench, options: argparse.Namespace) -> PluginSettings:
    changes: dict[str, Any] = {
        "pass_device_specs": True,
        "device_list_strategies": ("envvar", "cdi-cri"),
        "dev_root": options.dev_root,
        "driver_root": options.driver_root,
        "driver_root_here": options.driver_root,
    }
    return node.settings(**changes)


async def run(options: argparse.Namespace) -> int:
    """All checks; how many failed."""
    checks = Checks()
    probe = RealProbe(driver_root=options.driver_root)
    try:
        cards = await check_probe(checks, probe)
        assert any(not card.mig_enabled for card in cards.cards), "no card without MIG: nothing to share"
        with tempfile.TemporaryDirectory(prefix="hami-dp-") as folder:
            async with bench(Path(folder)) as node, ApiClient(Access(node.api.base_url), qps=0) as client:
                began = time.monotonic()
                plugin = Plugin(plugin_settings(node, options), client, probe, node.events)
                running = asyncio.create_task(plugin.run())
                try:
                    await node.until(lambda: node.kubelet.devices, "the device list")
                    checks.note(f"registered after {time.monotonic() - began:.2f} s on node {NODE}")
                    await check_register(checks, node, cards)
                    await check_allocate(checks, node, cards)
                    await note_cost(checks, node, cards)
                    trouble = [event for event in node.events.on_nodes if event[1] != "CardWithoutErrorEvents"]
                    checks.check("nothing odd was said of the node", not trouble, trouble)
                finally:
                    running.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await running
    except (NvmlError, AssertionError, TimeoutError) as error:
        checks.check("all checks were reached", False, error)
    finally:
        await probe.close()
    print(f"{checks.failed} failed")
    return 1 if checks.failed else 0


def main() -> int:
    """Runs within LIMIT_S; the exit status says whether a check failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver-root", type=Path, default=Path("/"), help="folder of the driver")
    parser.add_argument("--dev-root", type=Path, default=Path("/"), help="folder above dev/")
    options = parser.parse_args()
    structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
    return asyncio.run(asyncio.wait_for(run(options), LIMIT_S))


if __name__ == "__main__":
    sys.exit(main())
