"""The pods of the tour, in order, and how each must end. Pure data and a check."""

from __future__ import annotations

import enum
from typing import Any, Final

import msgspec

from hami.core.keys import GPU_SCHEDULER_POLICY
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import USE_TYPE


class Ending(enum.StrEnum):
    """How a pod of the tour ends."""

    RUNNING = "Running"
    REFUSED = "Refused"
    """The API server turns it away with our words."""
    PENDING = "Pending"
    """No node takes it; the events say why."""


class Stop(msgspec.Struct, frozen=True):
    """One pod of the tour: what it shows, its manifest, its ending, and words that the story must hold."""

    shows: str
    manifest: dict[str, Any]
    ending: Ending = Ending.RUNNING
    words: tuple[str, ...] = ()
    """Must occur in the refusal or in an event."""
    memory_mib: int | None = None
    """Memory of its first share."""
    core_percent: int | None = None
    cards: int | None = None

    @property
    def name(self) -> str:
        return str(self.manifest["metadata"]["name"])


PROFILES: Final = ("a100", "t4", "rtx3090")
"""One node each."""

_NAMES: Final = NvidiaConfig()
_RESOURCES: Final = {
    "gpu": _NAMES.resource_count_name,
    "gpumem": _NAMES.resource_memory_name,
    "gpumem_percentage": _NAMES.resource_memory_percentage_name,
    "gpucores": _NAMES.resource_core_name,
}

IMAGE: Final = "registry.k8s.io/pause:3.10"


def _container(name: str, **limits: str | int) -> dict[str, Any]:
    resources = {"limits": {_RESOURCES[key]: str(value) for key, value in limits.items()}}
    return {"name": name, "image": IMAGE, **({"resources": resources} if limits else {})}


def _pod(
    name: str, *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), **annotations: str
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "namespace": "default"}
    if annotations:
        metadata["annotations"] = {_ANNOTATIONS[key]: value for key, value in annotations.items()}
    spec: dict[str, Any] = {"containers": list(containers)}
    if init:
        spec["initContainers"] = list(init)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


_ANNOTATIONS: Final = {
    "card_policy": GPU_SCHEDULER_POLICY,
    "use_type": USE_TYPE,
}

TOUR: Final = (
    Stop(
        "a share of 3,000 MiB and 30 % of a card",
        _pod("share-one", _container("main", gpu=1, gpumem=3000, gpucores=30)),
        memory_mib=3000,
        core_percent=30,
        cards=1,
    ),
    Stop(
        "a second pod on the same card (card policy binpack)",
        _pod("share-two", _container("main", gpu=1, gpumem=4000, gpucores=20), card_policy="binpack"),
        memory_mib=4000,
        core_percent=20,
        cards=1,
    ),
    Stop(
        "half of a card's memory, by percentage",
        _pod("half", _container("main", gpu=1, gpumem_percentage=50, gpucores=0)),
        cards=1,
    ),
    Stop(
        "only memory asked for: the count is filled in",
        _pod("memory-only", _container("main", gpumem=2000)),
        memory_mib=2000,
        cards=1,
    ),
    Stop(
        f"a bare {_NAMES.resource_count_name} takes a whole card",
        _pod("exclusive", _container("main", gpu=1)),
        core_percent=100,
        cards=1,
    ),
    Stop(
        "one container with a share of two cards",
        _pod("two-cards", _container("main", gpu=2, gpumem=5000)),
        memory_mib=5000,
        cards=2,
    ),
    Stop(
        "only a T4 will do",
        _pod("on-a-t4", _container("main", gpu=1, gpumem=6000), use_type="T4"),
        memory_mib=6000,
        cards=1,
    ),
    Stop(
        "two containers with shares, one without between them",
        _pod(
            "three-containers",
            _container("train", gpu=1, gpumem=1000),
            _container("logs"),
            _container("serve", gpu=1, gpumem=1500),
        ),
        memory_mib=1000,
        cards=2,
    ),
    Stop("a pod without GPUs goes its usual way", _pod("cpu-only", _container("main")), cards=0),
    Stop(
        "16Gi where MiB are counted",
        _pod("wrong-unit", _container("main", gpu=1, gpumem="16Gi")),
        Ending.REFUSED,
        (_NAMES.resource_memory_name, "16384"),
    ),
    Stop(
        "more memory than any card has",
        _pod("too-big", _container("main", gpu=1, gpumem=200000)),
        Ending.PENDING,
        ("CardInsufficientMemory",),
    ),
)
