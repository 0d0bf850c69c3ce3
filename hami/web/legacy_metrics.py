"""The scheduler's metric names of HAMi before 2.9, for copied dashboards: given besides the others with
`--legacy-metrics` (spec/contract 3.6, spec/scheduler 8). Values are those of the new names."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from hami.web import metric_names
from hami.web.exposition import Family, Row
from hami.web.node_families import NodeFacts, NodeFamily


class _Twin(msgspec.Struct, frozen=True):
    """The legacy name of a metric, and its labels: legacy name, new name."""

    name: str
    labels: tuple[tuple[str, str], ...]

    @property
    def legacy_labels(self) -> tuple[str, ...]:
        return tuple(old for old, _ in self.labels)


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
    metric_names.GPU_MEMORY_LIMIT: _Twin("GPUDeviceMemoryLimit", (*_CARD, _TYPE)),
    metric_names.GPU_CORE_LIMIT: _Twin("GPUDeviceCoreLimit", (*_CARD, _TYPE)),
    metric_names.GPU_SHARED_COUNT: _Twin("GPUDeviceSharedNum", (*_CARD, _TYPE)),
    metric_names.GPU_CORE_ALLOCATED: _Twin("GPUDeviceCoreAllocated", (*_CARD, _TYPE)),
    metric_names.GPU_MEMORY_ALLOCATED: _Twin("GPUDeviceMemoryAllocated", (*_CARD, _CORES, _TYPE)),
    metric_names.NODE_GPU_OVERVIEW: _Twin(
        "nodeGPUOverview", (*_CARD, _CORES, ("devicememorylimit", "device_memory_limit"), _TYPE)
    ),
    metric_names.NODE_GPU_MEMORY_SHARE: _Twin("nodeGPUMemoryPercentage", _CARD),
    metric_names.NODE_GPU_MIG_INSTANCE: _Twin("nodeGPUMigInstance", (*_CARD, ("migname", "profile"))),
    metric_names.VGPU_MEMORY_ALLOCATED: _Twin("vGPUMemoryAllocated", _POD),
    metric_names.VGPU_CORE_ALLOCATED: _Twin("vGPUCoreAllocated", _POD),
    metric_names.QUOTA_USED: _Twin(
        "QuotaUsed", (_ZONE, ("quotanamespace", "namespace"), ("quotaName", "quota_name"), ("limit", "limit"))
    ),
}


def with_legacy(families: Iterable[Family]) -> Iterator[Family]:
    """Each family, followed by its twin under the legacy name where it has one."""
    for family in families:
        yield family
        twin = TWINS.get(family.name)
        if twin is not None:
            yield Family(twin.name, family.text, twin.legacy_labels, functools.partial(_rows_of_all, family, twin))


def with_legacy_of_nodes(families: Iterable[NodeFamily]) -> Iterator[NodeFamily]:
    """The same for families whose samples belong to nodes."""
    for family in families:
        yield family
        twin = TWINS.get(family.name)
        if twin is not None:
            yield NodeFamily(twin.name, family.text, twin.legacy_labels, functools.partial(_rows_of_node, family, twin))


def _rows_of_all(family: Family, twin: _Twin) -> Iterator[Row]:
    return _renamed(twin, family.labels, family.rows())


def _rows_of_node(family: NodeFamily, twin: _Twin, node: NodeFacts) -> Iterator[Row]:
    return _renamed(twin, family.labels, family.rows(node))


def _renamed(twin: _Twin, labels: tuple[str, ...], rows: Iterable[Row]) -> Iterator[Row]:
    places = [labels.index(new) for _, new in twin.labels]
    seen: set[tuple[str, ...]] = set()
    for values, sample in rows:
        kept = tuple([values[place] for place in places])
        # Fewer labels: several instances of one profile on one card are one series.
        if kept not in seen:
            if len(places) < len(labels):
                seen.add(kept)
            yield kept, sample
