"""`GET /metrics` of the scheduler: upstream's card, pod and build metrics from the live state (spec/contract 3.6).

Series exist exactly as long as what they speak of: every scrape is gathered anew from the state, so nothing stale
stays. Core "ratios" are 0..100 and the memory ratio of a node's card is 0..1, as upstream has them.
"""

from __future__ import annotations

import asyncio
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami import __version__
from hami.core.model import NO_USE, Device, Use
from hami.core.reasons import NODE_UNREGISTERED
from hami.obs import metrics
from hami.placement.claims import Claim
from hami.placement.world import NodeView, World

MIB: Final = 1024 * 1024
CARD_LABELS: Final = ("zone", "node", "device_uuid", "device_index", "device_type")
POD_LABELS: Final = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")
ZONE: Final = "vGPU"

_CARD_METRICS: Final[tuple[tuple[str, str, Callable[[Device, Use], float]], ...]] = (
    ("hami_gpu_memory_limit_bytes", "Registered memory of a card", lambda card, _: card.memory_mib * MIB),
    ("hami_gpu_core_limit_ratio", "Registered cores of a card in percent", lambda card, _: card.core_percent),
    ("hami_gpu_shared_count", "Shares on a card", lambda _, use: use.slots),
    ("hami_gpu_core_allocated_ratio", "Cores promised to pods in percent", lambda _, use: use.core_percent),
)


class Stats(Protocol):
    """What a reflector counts."""

    lists: int
    last_heard_monotonic_s: float


def snapshot(world: World) -> CollectorRegistry:
    """The state as it is now, taken on the loop, as families that any thread may gather and render.

    Rendering tens of thousands of cards takes longer than the loop may wait (design 4, promise 7).
    """
    registry = CollectorRegistry()
    registry.register(_Cards(world))
    return registry


class _Cards(Collector):
    """Views and claims of one moment. Nothing of what `collect` reads changes afterwards."""

    def __init__(self, world: World) -> None:
        world.settle_now()
        views = [view for name in sorted(world.inventory.names()) if (view := world.view(name))]
        self._views = views
        self._claims = list(world.ledger.claims())
        self._few = [*_quotas(world), *_troubles(world, views)]

    def collect(self) -> Iterable[Metric]:
        """One pass over cards for each kind of family, and one over claims."""
        yield from _cards(self._views)
        yield from _overview(self._views)
        yield from _pods(self._claims)
        yield from self._few
        build = GaugeMetricFamily(
            "hami_build_info",
            "Build",
            labels=("version", "revision", "build_date", "go_version", "compiler", "platform"),
        )
        build.add_metric((__version__, "", "", "", platform.python_implementation(), platform.machine()), 1)
        yield build


def _each_card(views: Iterable[NodeView]) -> Iterator[tuple[str, Device, Use]]:
    for view in views:
        for device, use in zip(view.state.devices, view.state.uses, strict=True):
            yield view.state.name, device, use


def _cards(views: list[NodeView]) -> Iterator[Metric]:
    for name, text, value in _CARD_METRICS:
        family = GaugeMetricFamily(name, text, labels=CARD_LABELS)
        for node, device, use in _each_card(views):
            family.add_metric((ZONE, node, device.id, str(device.index), device.type), value(device, use))
        yield family


def _overview(views: list[NodeView]) -> Iterator[Metric]:
    cores = (*CARD_LABELS[:4], "device_cores", "device_type")
    allocated = GaugeMetricFamily("hami_gpu_memory_allocated_bytes", "Memory promised to pods", labels=cores)
    overview = GaugeMetricFamily(
        "hami_node_gpu_overview",
        "Memory promised to pods, with the card's size",
        labels=(*CARD_LABELS[:4], "device_cores", "device_memory_limit", "device_type"),
    )
    ratio = GaugeMetricFamily(
        "hami_node_gpu_memory_allocated_ratio", "Share of a card's memory that is promised, 0 to 1", labels=CARD_LABELS
    )
    for node, device, use in _each_card(views):
        card = (ZONE, node, device.id, str(device.index))
        used = use.memory_mib * MIB
        allocated.add_metric((*card, str(device.core_percent), device.type), used)
        overview.add_metric((*card, str(device.core_percent), str(device.memory_mib), device.type), used)
        if device.memory_mib:
            ratio.add_metric((*card, device.type), use.memory_mib / device.memory_mib)
    yield from (allocated, overview, ratio)


def _pods(claims: Iterable[Claim]) -> Iterator[Metric]:
    memory = GaugeMetricFamily("hami_vgpu_memory_allocated_bytes", "Memory promised to a pod", labels=POD_LABELS)
    cores = GaugeMetricFamily("hami_vgpu_core_allocated_ratio", "Cores promised to a pod in percent", labels=POD_LABELS)
    for claim in claims:
        for device, use in claim.charges:
            labels = (ZONE, claim.namespace, claim.node, claim.name, "0", device)
            memory.add_metric(labels, use.memory_mib * MIB)
            cores.add_metric(labels, use.core_percent)
    yield from (memory, cores)


def _quotas(world: World) -> Iterator[Metric]:
    """Limits in force and what counts against them, in MiB, percent and cards; only where a limit is set."""
    labels = ("zone", "namespace", "quota_name")
    limits = GaugeMetricFamily("hami_resource_quota_limit", "Limit of a namespace in MiB or percent", labels=labels)
    used = GaugeMetricFamily(
        "hami_resource_quota_used",
        "What the pods of a namespace hold, in MiB or percent",
        labels=(*labels, "limit"),
    )
    for namespace, of_namespace in world.quotas.limits():
        uses = world.ledger.namespaces.of(namespace)
        for vendor in of_namespace:
            use = uses.get(vendor.word, NO_USE)
            for limit, value in vendor.against(use):
                limits.add_metric((ZONE, namespace, limit.resource), limit.value)
                used.add_metric((ZONE, namespace, limit.resource, str(limit.value)), value)
    yield from (limits, used)


def _troubles(world: World, views: list[NodeView]) -> Iterator[Metric]:
    out = GaugeMetricFamily("hami_scheduler_nodes_out", "Registered nodes that take no new shares")
    out.add_metric((), sum(1 for view in views if view.problem and view.problem != NODE_UNREGISTERED))
    undecodable = GaugeMetricFamily(
        "hami_scheduler_undecodable", "Annotations that cannot be read, by kind", labels=("kind",)
    )
    undecodable.add_metric(("register",), len(world.inventory.undecodable))
    undecodable.add_metric(("allocation",), len(world.ledger.undecodable))
    expired = GaugeMetricFamily("hami_scheduler_reservations_expired", "Reservations dropped by the backstop")
    expired.add_metric((), world.ledger.expired_total)
    yield from (out, undecodable, expired)


def app(world: World, stats: Mapping[str, Stats]) -> FastAPI:
    """The application of the metrics listener."""
    application = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @application.get("/metrics")
    async def scrape() -> Response:
        for kind, of_kind in stats.items():
            metrics.relists.labels(kind).set(of_kind.lists)
            metrics.last_event_age_seconds.labels(kind).set(time.monotonic() - of_kind.last_heard_monotonic_s)
        await world.settle()
        cards = await asyncio.to_thread(generate_latest, snapshot(world))
        text = cards + generate_latest(metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return application
