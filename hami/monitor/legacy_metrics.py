"""The names of HAMi before 2.9, for copied dashboards: given besides the others with `--legacy-metrics`.

`Device_memory_desc_of_container` has its values as labels, as upstream has it, so each change makes a new series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily, Metric

from hami.monitor.metrics import CardOfContainer, MigRow, Value, card_type, limit_bytes, sm_percent, used_bytes
from hami.nvml.probe import CardLoad
from hami.obs.shared_series import ZONE

HOST_LABELS: Final = ("zone", "nodeid", "deviceidx", "deviceuuid", "devicetype")
CONTAINER_LABELS: Final = ("zone", "podnamespace", "podname", "ctrname", "vdeviceid", "deviceuuid")

_CONTAINER_METRICS: Final[tuple[tuple[str, str, Value], ...]] = (
    ("vGPU_device_memory_usage_in_bytes", "Memory of a card that a container uses", used_bytes),
    ("vGPU_device_memory_limit_in_bytes", "Memory of a card that a container may use", limit_bytes),
    ("Device_utilization_desc_of_container", "How busy a container keeps a card, 0 to 100", sm_percent),
)


def legacy_families(
    node: str, loads: Iterable[CardLoad], cards: Sequence[CardOfContainer], mig: Iterable[MigRow], now_s: float
) -> Iterator[Metric]:
    """All of them."""
    yield from _host(node, loads)
    for name, text, value in _CONTAINER_METRICS:
        family = GaugeMetricFamily(name, text, labels=CONTAINER_LABELS)
        for row in cards:
            family.add_metric(_without_node(row), value(row))
        yield family
    yield _last_kernel(cards, now_s)
    yield _memory_in_words(cards)
    info = GaugeMetricFamily("MigInfo", "MIG instance of a container", labels=(*CONTAINER_LABELS, "instanceid"))
    for each in mig:
        info.add_metric((*_without_node(each), each.instance_labels[2]), 1)
    yield info


def _without_node(row: CardOfContainer | MigRow) -> tuple[str, ...]:
    zone, _, *others = row.labels
    return (zone, *others)


def _host(node: str, loads: Iterable[CardLoad]) -> Iterator[Metric]:
    memory = GaugeMetricFamily("HostGPUMemoryUsage", "Memory in use on a card", labels=HOST_LABELS)
    busy = GaugeMetricFamily("HostCoreUtilization", "How busy a card is, 0 to 100", labels=HOST_LABELS)
    for load in loads:
        card = (ZONE, node, str(load.index), load.uuid, card_type(load))
        for family, value in ((memory, load.memory_used_bytes), (busy, load.gpu_percent)):
            if value is not None:
                family.add_metric(card, value)
    yield from (memory, busy)


def _last_kernel(cards: Iterable[CardOfContainer], now_s: float) -> Metric:
    family = GaugeMetricFamily(
        "Device_last_kernel_of_container", "Time since a container last started a kernel", labels=CONTAINER_LABELS
    )
    for row in cards:
        if (seconds := row.elapsed_s(now_s)) is not None:
            family.add_metric(_without_node(row), seconds)
    return family


def _memory_in_words(cards: Iterable[CardOfContainer]) -> Metric:
    family = GaugeMetricFamily(
        "Device_memory_desc_of_container",
        "Memory of a card that a container uses, its parts as labels",
        labels=(*CONTAINER_LABELS, "context", "module", "data", "offset"),
    )
    for row in cards:
        context, module, data = (
            row.total(lambda usage: usage.context_bytes),
            row.total(lambda usage: usage.module_bytes),
            row.total(lambda usage: usage.data_bytes),
        )
        total = row.total(lambda usage: usage.total_bytes)
        parts = (context, module, data, max(0, total - context - module - data))
        family.add_metric((*_without_node(row), *map(str, parts)), total)
    return family
