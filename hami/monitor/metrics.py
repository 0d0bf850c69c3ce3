"""Families of the node's metrics: upstream's names, labels and ranges (spec/contract 3.6, spec/node 6.5).

Copied as they are: names in "ratio" with values 0 to 100, and one host metric without a node (trap T-37).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from hami.core.codec import decode_mig_allocations
from hami.core.errors import HamiError
from hami.core.keys import MIG_ALLOCATIONS
from hami.core.objects import Pod
from hami.monitor.containers import ContainerUse
from hami.nvml.probe import CardLoad
from hami.obs.shared_series import BUILD, BUILD_LABELS, BUILD_TEXT, ZONE, build_values
from hami.shim.layout import CardState, CardUsage

HOST_LABELS: Final = ("zone", "node", "device_index", "device_uuid", "device_type")
CONTAINER_LABELS: Final = ("zone", "node", "namespace", "pod", "container", "vdevice_index", "device_uuid")
MIG_LABELS: Final = ("mig_uuid", "profile", "gpu_instance_id", "compute_instance_id")
_WHOLE_CARD_PERCENT: Final = 100
_UUID_CHARS: Final = 40
"""Upstream's label has the first 40 bytes of the region's text."""


@dataclass(frozen=True, slots=True)
class CardOfContainer:
    """One card of one container on `node`, summed over its processes."""

    node: str
    use: ContainerUse
    card: CardState

    @property
    def labels(self) -> tuple[str, ...]:
        use = self.use
        card = (str(self.card.index), self.card.uuid[:_UUID_CHARS])
        return (ZONE, self.node, use.namespace, use.pod, use.container, *card)

    def total(self, value: Callable[[CardUsage], int]) -> int:
        """Sum of one value over the processes."""
        return sum(value(process.cards[self.card.index]) for process in self.use.state.processes)

    def elapsed_s(self, now_s: float) -> float | None:
        """Seconds since the last kernel; None if there was none."""
        last_s = self.use.state.last_kernel_time_s
        return max(0.0, int(now_s) - last_s) if last_s > 0 else None


Value = Callable[[CardOfContainer], float]


def used_bytes(row: CardOfContainer) -> float:
    """What all processes of the container hold of the card."""
    return row.total(lambda usage: usage.total_bytes)


def limit_bytes(row: CardOfContainer) -> float:
    """The container's share of the card; 0 for no limit."""
    return row.card.memory_limit_bytes


def sm_percent(row: CardOfContainer) -> float:
    """At most 100: samples of several processes overlap (HAMi issue 555)."""
    return min(_WHOLE_CARD_PERCENT, row.total(lambda usage: usage.sm_percent))


_CONTAINER_METRICS: Final[tuple[tuple[str, str, Value], ...]] = (
    ("hami_vgpu_memory_used_bytes", "Memory of a card that a container uses", used_bytes),
    ("hami_vgpu_memory_limit_bytes", "Memory of a card that a container may use; 0 means no limit", limit_bytes),
    ("hami_container_device_memory_bytes", "The same as hami_vgpu_memory_used_bytes", used_bytes),
    ("hami_container_device_utilization_ratio", "How busy a container keeps a card, 0 to 100", sm_percent),
    (
        "hami_vgpu_memory_context_bytes",
        "Memory of CUDA contexts of a container",
        lambda row: row.total(lambda usage: usage.context_bytes),
    ),
    (
        "hami_vgpu_memory_module_bytes",
        "Memory of CUDA modules of a container",
        lambda row: row.total(lambda usage: usage.module_bytes),
    ),
    (
        "hami_vgpu_memory_buffer_bytes",
        "Memory that a container allocated",
        lambda row: row.total(lambda usage: usage.data_bytes),
    ),
)


def rows(node: str, uses: Iterable[ContainerUse]) -> list[CardOfContainer]:
    """Each card of each container of the node."""
    return [CardOfContainer(node, use, card) for use in uses for card in use.state.cards]


def container_families(cards: Sequence[CardOfContainer], now_s: float) -> Iterator[Metric]:
    """What containers use."""
    for name, text, value in _CONTAINER_METRICS:
        family = GaugeMetricFamily(name, text, labels=CONTAINER_LABELS)
        for row in cards:
            family.add_metric(row.labels, value(row))
        yield family
    elapsed = GaugeMetricFamily(
        "hami_container_last_kernel_elapsed_seconds",
        "Time since a container last started a kernel",
        labels=CONTAINER_LABELS,
    )
    for row in cards:
        if (seconds := row.elapsed_s(now_s)) is not None:
            elapsed.add_metric(row.labels, seconds)
    yield elapsed


def card_type(load: CardLoad) -> str:
    """Always with the prefix, also before a name that has it (spec/node 6.5)."""
    return f"NVIDIA-{load.name}"


def host_families(node: str, loads: Iterable[CardLoad]) -> Iterator[Metric]:
    """What the driver says of the node's cards. What it does not offer has no series."""
    memory = GaugeMetricFamily("hami_host_gpu_memory_used_bytes", "Memory in use on a card", labels=HOST_LABELS)
    busy = GaugeMetricFamily("hami_host_gpu_utilization_ratio", "How busy a card is, 0 to 100", labels=HOST_LABELS)
    controller = GaugeMetricFamily(
        "hami_host_gpu_memory_controller_utilization_ratio",
        "How busy the memory controller of a card is, 0 to 100",
        labels=HOST_LABELS,
    )
    for load in loads:
        card = (str(load.index), load.uuid, card_type(load))
        for family, value in ((memory, load.memory_used_bytes), (busy, load.gpu_percent)):
            if value is not None:
                family.add_metric((ZONE, node, *card), value)
        if load.memory_controller_percent is not None:
            controller.add_metric((ZONE, node, *card), load.memory_controller_percent)
    yield from (memory, busy, controller)


@dataclass(frozen=True, slots=True)
class MigRow:
    """One MIG instance of one container, from the pod's annotation."""

    labels: tuple[str, ...]
    instance_labels: tuple[str, ...]


def mig_rows(node: str, pods: Iterable[Pod]) -> list[MigRow]:
    """Instances that exist, of pods of the node that have not ended; what cannot be read is left out."""
    return [row for pod in pods if not pod.finished for row in _mig_rows(node, pod)]


def _mig_rows(node: str, pod: Pod) -> Iterator[MigRow]:
    text = pod.annotations.get(MIG_ALLOCATIONS, "")
    try:
        found = decode_mig_allocations(text, pod.key) if text else ()
    except HamiError:
        return
    for each in found:
        if each.mig_uuid and each.container_index < len(pod.containers):
            container = pod.containers[each.container_index].name
            card = (str(each.device_index), each.gpu_uuid)
            instance = (each.mig_uuid, each.profile, str(each.gpu_instance_id), str(each.compute_instance_id))
            yield MigRow((ZONE, node, pod.metadata.namespace, pod.metadata.name, container, *card), instance)


def mig_family(found: Iterable[MigRow]) -> Metric:
    """Which MIG instance a container has; the card's id is that of the parent."""
    family = GaugeMetricFamily(
        "hami_mig_device_info", "MIG instance of a container", labels=(*CONTAINER_LABELS, *MIG_LABELS)
    )
    for row in found:
        family.add_metric((*row.labels, *row.instance_labels), 1)
    return family


def own_families(
    node: str, *, unreadable: int, collected: int, host_readable: bool, driver_errors: int
) -> Iterator[Metric]:
    """How the monitor itself fares."""
    success = GaugeMetricFamily(
        "hami_vgpumonitor_collect_success", "1 while all that is asked and read answers", labels=("zone", "node")
    )
    success.add_metric((ZONE, node), int(host_readable and not unreadable))
    yield success
    build = GaugeMetricFamily(BUILD, BUILD_TEXT, labels=BUILD_LABELS)
    build.add_metric(build_values(), 1)
    yield build
    yield GaugeMetricFamily("hami_monitor_unreadable_regions", "Container folders that cannot be read", unreadable)
    yield GaugeMetricFamily("hami_monitor_collected_folders", "Folders removed since start", collected)
    yield GaugeMetricFamily("hami_monitor_driver_answers", "1 while the driver's library answers", host_readable)
    yield CounterMetricFamily("hami_monitor_driver_errors", "Questions that the driver did not answer", driver_errors)
