"""Kubelet stand-ins of several nodes in one process, each with its node's identity.

    python -m tests.cluster.kubelets SPEC.json

The specification (`KubeletSpec` below, as JSON) names the API server and, for each node, its client certificate and
folders. What a container is started with is appended to the node's `allocations.jsonl`, for tests to read.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import signal
import ssl
import sys
from pathlib import Path
from typing import Any

from hami.core.errors import TransportError
from hami.sim.errors import StatusError
from hami.sim.kubelet import ContainerStart, Kubelet, KubeletConfig, SimulatedRunner

HEARTBEAT_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node: its name, certificate, device-plugins folder, and the file that records container starts."""

    name: str
    cert: str
    key: str
    device_plugins: str
    record: str


@dataclasses.dataclass(frozen=True, slots=True)
class KubeletSpec:
    """All nodes of one process."""

    server: str
    authority: str
    nodes: list[NodeSpec]

    def write(self, path: Path) -> None:
        """Save as JSON."""
        path.write_text(json.dumps(dataclasses.asdict(self), indent=1))

    @classmethod
    def read(cls, path: Path) -> KubeletSpec:
        """Load what `write` saved."""
        raw: dict[str, Any] = json.loads(path.read_text())
        return cls(raw["server"], raw["authority"], [NodeSpec(**node) for node in raw["nodes"]])


class RecordingRunner(SimulatedRunner):
    """Runs nothing, but notes the environment that each container would have."""

    def __init__(self, record: Path) -> None:
        self._record = record

    async def run(self, start: ContainerStart) -> int:
        """Note, then wait as the pod's annotations say."""
        line = {"pod_uid": start.pod["metadata"]["uid"], "container": start.container["name"], "envs": start.env}
        with self._record.open("a") as record:
            record.write(json.dumps(line) + "\n")
        return await super().run(start)


async def run(spec: KubeletSpec) -> None:
    """Start all kubelets and stay until SIGTERM."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    kubelets = []
    for node in spec.nodes:
        tls = ssl.create_default_context(cafile=spec.authority)
        tls.load_cert_chain(node.cert, node.key)
        config = KubeletConfig(node.name, Path(node.device_plugins), labels={"gpu": "on"}, heartbeat_s=HEARTBEAT_S)
        kubelets.append(Kubelet(spec.server, config, RecordingRunner(Path(node.record)), tls=tls))
    await asyncio.gather(*(kubelet.start() for kubelet in kubelets))
    print(f"{len(kubelets)} kubelets ready", flush=True)
    await stopped.wait()
    await asyncio.gather(*(kubelet.stop() for kubelet in kubelets))


if __name__ == "__main__":
    try:
        asyncio.run(run(KubeletSpec.read(Path(sys.argv[1]))))
    except (TransportError, StatusError) as error:
        # A node that cannot register yet, with an API server that stands still: as a kubelet, it begins anew.
        print(error, flush=True)
        os.execv(sys.executable, [sys.executable, "-m", "tests.cluster.kubelets", *sys.argv[1:]])
