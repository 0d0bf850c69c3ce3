"""Nodes that exist in the API only: cards of any shape, no kubelet. Enough to see what a scheduler decides."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Mapping, Sequence

from tests.cluster.api import Api, Object
from tests.cluster.pods import BIND_PHASE, NODE_LOCK, TO_ALLOCATE
from tests.cluster.processes import PATIENCE_S, wait_until

A100 = "NVIDIA A100-SXM4-80GB"


@dataclasses.dataclass(frozen=True, slots=True)
class FakeCard:
    """One registered card; the defaults are those of the worked vectors (spec/scheduler.md 12)."""

    uuid: str
    memory_mib: int = 16384
    cores: int = 100
    slots: int = 10
    model: str = A100
    healthy: bool = True


def register(cards: Sequence[FakeCard]) -> str:
    """The register annotation as the device plugin writes it: JSON, zero values left out."""
    entries = []
    for index, card in enumerate(cards):
        entry = {"id": card.uuid, "index": index, "count": card.slots, "devmem": card.memory_mib}
        entry |= {"devcore": card.cores, "type": card.model, "mode": "hami-core", "health": card.healthy}
        entries.append({key: value for key, value in entry.items() if value})
    return json.dumps(entries, separators=(",", ":"))


def handshake() -> str:
    """A device plugin's sign of life, in the form that upstream's plugins write."""
    now = datetime.datetime.now(datetime.UTC)
    return f"Reported {now:%Y-%m-%d %H:%M:%S.%f}000 +0000 UTC m=+1.0"


def fake_node(name: str, cards: Sequence[FakeCard], labels: Mapping[str, str]) -> Object:
    """A Ready node with these cards."""
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(sum(card.slots for card in cards))}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastHeartbeatTime": None}
    annotations = {"hami.io/node-nvidia-register": register(cards), "hami.io/node-handshake": handshake()}
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "gpu": "on", **labels},
            "annotations": annotations,
        },
        "status": {"capacity": room, "allocatable": room, "conditions": [ready]},
    }


def add_fake_node(api: Api, name: str, cards: Sequence[FakeCard], labels: Mapping[str, str]) -> None:
    """Create the node and return when the controller manager has taken its not-ready taint away."""
    api.post("/api/v1/nodes", fake_node(name, cards, labels))
    path = f"/api/v1/nodes/{name}"
    wait_until(lambda: not api.get(path)["spec"].get("taints"), PATIENCE_S, f"node {name} without taints")


def pretend_allocated(api: Api, pod: Object) -> None:
    """Do what the device plugin does after the last Allocate: erase the work list, say success, release the token."""
    metadata = pod["metadata"]
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
    erased = ";" * metadata["annotations"][TO_ALLOCATE].count(";")
    api.annotate(path, {TO_ALLOCATE: erased, BIND_PHASE: "success"})
    api.annotate(f"/api/v1/nodes/{pod['spec']['nodeName']}", {NODE_LOCK: None})
