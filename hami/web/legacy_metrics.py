"""The scheduler's metric names of HAMi before 2.9, for copied dashboards: given besides the others with
`--legacy-metrics` (spec/contract 3.6, spec/scheduler 8). Values are those of the new names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from hami.web.exposition import Family, Row


class _Twin(msgspec.Struct, frozen=True):
    """The legacy name of a metric, and its labels: legacy name, new name."""

    name: str
    labels: tuple[tuple[str, str], ...]


_ZONE: Final = ("zone", "zone")
_CARD: Final = (_ZONE, ("nodeid", "node"), ("deviceuuid", "device_uuid"), ("deviceidx", "device_index"))
_TYPE: Final = ("devicetype", "device_type")
_CORES: Final = ("devicecores", "device_cores")
_POD: Final = (
    _ZONE,
    ("podnamespace", "namespace"),
    ("nodename", "node"),
    ("podname", "pod"),
    ("containeridx", "container_index"),
    ("deviceuuid", "device_uuid"),
)

TWINS: Final[dict[str, _Twin]] = {
    "hami_gpu_memory_limit_bytes": _Twin("GPUDeviceMemoryLimit", (*_CARD, _TYPE)),
    "hami_gpu_core_limit_ratio": _Twin("GPUDeviceCoreLimit", (*_CARD, _TYPE)),
    "hami_gpu_shared_count": _Twin("GPUDeviceSharedNum", (*_CARD, _TYPE)),
    "hami_gpu_core_allocated_ratio": _Twin("GPUDeviceCoreAllocated", (*_CARD, _TYPE)),
    "hami_gpu_memory_allocated_bytes": _Twin("GPUDeviceMemoryAllocated", (*_CARD, _CORES, _TYPE)),
    "hami_node_gpu_overview": _Twin(
        "nodeGPUOverview", (*_CARD, _CORES, ("devicememorylimit", "device_memory_limit"), _TYPE)
    ),
    "hami_node_gpu_memory_allocated_ratio": _Twin("nodeGPUMemoryPercentage", _CARD),
    "hami_node_gpu_mig_instance_info": _Twin("nodeGPUMigInstance", (*_CARD, ("migname", "profile"))),
    "hami_vgpu_memory_allocated_bytes": _Twin("vGPUMemoryAllocated", _POD),
    "hami_vgpu_core_allocated_ratio": _Twin("vGPUCoreAllocated", _POD),
    "hami_resource_quota_used": _Twin(
        "QuotaUsed", (_ZONE, ("quotanamespace", "namespace"), ("quotaName", "quota_name"), ("limit", "limit"))
    ),
}


def with_legacy(families: Iterable[Family]) -> Iterator[Family]:
    """Each family, followed by its twin under the legacy name where it has one."""
    for family in families:
        yield family
        twin = TWINS.get(family.name)
        if twin is not None:
            labels = tuple(old for old, _ in twin.labels)
            yield Family(twin.name, family.text, labels, functools.partial(_twin_rows, family, twin))


def _twin_rows(family: Family, twin: _Twin) -> Iterator[Row | None]:
    places = [family.labels.index(new) for _, new in twin.labels]
    seen: set[tuple[str, ...]] = set()
    for row in family.rows():
        if row is None:
            yield None
            continue
        values = tuple([row[0][place] for place in places])
        # Fewer labels: several instances of one profile on one card are one series.
        if values not in seen:
            if len(places) < len(family.labels):
                seen.add(values)
            yield values, row[1]
