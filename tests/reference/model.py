"""Values that the steps of the reference hand to each other."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

Object = dict[str, Any]
"""One Kubernetes API object as decoded JSON."""


def f32(value: float) -> float:
    """Round to float32, the type in which upstream computes scores (4.4, 4.5)."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


@dataclass(frozen=True, slots=True)
class Config:
    """The part of device-config.yaml and of the flags that scheduling reads."""

    count_name: str = "nvidia.com/gpu"
    memory_name: str = "nvidia.com/gpumem"
    percentage_name: str = "nvidia.com/gpumem-percentage"
    cores_name: str = "nvidia.com/gpucores"
    default_memory: int = 0
    default_cores: int = 0
    memory_factor: int = 1
    node_policy: str = "binpack"
    gpu_policy: str = "spread"


@dataclass(frozen=True, slots=True)
class Profile:
    """A MIG profile of one card: memory in MiB, cores in percent, placements as (start, size) in memory slices."""

    name: str
    memory_mib: int
    cores: int
    slices: int
    placements: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class MigSlice:
    """A chosen MIG instance."""

    profile: str
    start: int
    size: int


@dataclass(slots=True)
class Card:
    """One registered card and what is used of it. `position` is its place in the register annotation."""

    uuid: str
    index: int
    position: int
    count: int
    total_mem: int
    total_cores: int
    type: str
    numa: int
    mode: str
    healthy: bool
    cordoned: bool = False
    profiles: tuple[Profile, ...] = ()
    used: int = 0
    used_mem: int = 0
    used_cores: int = 0
    taken_slices: list[tuple[int, int]] = field(default_factory=list)

    @property
    def is_mig(self) -> bool:
        return self.mode == "mig"

    def charge(self, mem: int, cores: int, slots: int = 1) -> None:
        self.used += slots
        self.used_mem += mem
        self.used_cores += cores


@dataclass(frozen=True, slots=True)
class Grant:
    """One card given to one container: memory in MiB and cores in percent, as written to the annotation."""

    uuid: str
    mem: int
    cores: int
    mig: MigSlice | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What one container asks of one vendor (4.1). `percentage` 101 means: not set."""

    nums: int
    mem: int
    percentage: int
    cores: int


@dataclass(frozen=True, slots=True)
class Container:
    """One container of the pod in annotation order. `role` is `init`, `sidecar` or `app`."""

    name: str
    role: str
    request: Request | None


@dataclass(slots=True)
class Node:
    """A registered node: its cards with usage, and pair scores of its cards."""

    name: str
    cards: list[Card]
    pair_scores: dict[str, dict[str, int]]
    blocked: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer of one `/filter` call.

    Attributes:
        node: the chosen node, or None.
        annotations: what is written to the pod, by key (without times).
        failed: node name -> reason text, for each requested node that does not fit (also when another node fits).
        events: (type, reason, message) in order.
        scores: node name -> float32 score, of nodes that fit.
        passthrough: the pod asks for nothing, all names are echoed.
        error: text of the extender's `Error`, empty if none.
    """

    node: str | None
    annotations: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    passthrough: bool = False
    error: str = ""
