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
from hami.core.codec import decode_mig_allocations
from hami.core.errors import DecodeError
from hami.core.model import NO_USE, Device, Use
from hami.core.reasons import NODE_UNREGISTERED
from hami.obs import metrics
from hami.placement.claims import Claim
from hami.placement.world import NodeView, World
from hami.web.legacy_metrics import with_legacy

MIB: Final = 1024 * 1024
CARD_LABELS: Final = ("zone", "node", "device_uuid", "device_index", "device_type")
POD_LABELS: Final = ("zone", "namespace", "node", "pod", "container_index", "device_uuid")
ZONE: Final = "vGPU"
MIG_LABELS: Final = (
    *CARD_LABELS[:4],
    "mig_uuid",
    "profile",
    "gpu_instance_id",
    "compute_instance_id",
    "placement_start",
    "placement_size",
)
MIG_TEXT_AT: Final = 2
"""Where `Claim.source` has the MIG reservations."""

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


def snapshot(world: World, *, legacy: bool = False) -> CollectorRegistry:
    """The state as it is now, taken on the loop, as families that any thread may gather and render.

    Rendering tens of thousands of cards takes longer than the loop may wait (design 4, promise 7).
    """
    registry = CollectorRegistry()
    registry.register(_Cards(world, legacy=legacy))
    return registry


class _Cards(Collector):
    """Views and claims of one moment. Nothing of what `collect` reads changes afterwards."""

    def __init__(self, world: World, *, legacy: bool = False) -> None:
        """`legacy`: names of HAMi before 2.9 as well."""
        world.settle_now()
        self._legacy = legacy
        views = [view for name in sorted(world.inventory.names()) if (view := world.view(name))]
        self._views = views
        self._claims = list(world.ledger.claims())
        self._few = [*_quotas(world), *_troubles(world, views)]

    def collect(self) -> Iterable[Metric]:
        """Every family; with legacy names each is followed by its twin."""
        return with_legacy(self._families()) if self._legacy else self._families()

    def _families(self) -> Iterator[Metric]:
        """One pass over cards for each kind of family, and one over claims."""
        yield from _cards(self._views)
        yield from _overview(self._views)
        yield from _pods(self._claims)
        yield _mig_instances(self._views, self._claims)
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


def _mig_instances(views: Iterable[NodeView], claims: Iterable[Claim]) -> Metric:
    """Instances that a device plugin made for pods, as their reservations say."""
    family = GaugeMetricFamily("hami_node_gpu_mig_instance_info", "MIG instance that a pod holds, 1", labels=MIG_LABELS)
    claims = [claim for claim in claims if claim.slices and claim.source]
    index_of = {(node, card.id): card.index for node, card, _ in _each_card(views)} if claims else {}
    for claim in claims:
        text = claim.source[MIG_TEXT_AT]
        try:
            made = decode_mig_allocations(text, claim.key) if text else ()
        except DecodeError:
            # Told by the ledger already: the node is out.
            continue
        for each in made:
            if each.mig_uuid is not None:
                index = index_of.get((claim.node, each.gpu_uuid), "")
                ids = (str(each.gpu_instance_id), str(each.compute_instance_id))
                place = (str(each.placement.start), str(each.placement.size))
                card = (ZONE, claim.node, each.gpu_uuid, str(index))
                family.add_metric((*card, each.mig_uuid, each.profile, *ids, *place), 1)
    return family


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


def app(world: World, stats: Mapping[str, Stats], *, legacy: bool = False) -> FastAPI:
    """The application of the metrics listener; `legacy`: names of HAMi before 2.9 as well."""
    application = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @application.get("/metrics")
    async def scrape() -> Response:
        for kind, of_kind in stats.items():
            metrics.relists.labels(kind).set(of_kind.lists)
            metrics.last_event_age_seconds.labels(kind).set(time.monotonic() - of_kind.last_heard_monotonic_s)
        await world.settle()
        cards = await asyncio.to_thread(generate_latest, snapshot(world, legacy=legacy))
        text = cards + generate_latest(metrics.registry)
        return Response(text, media_type=CONTENT_TYPE_LATEST)

    return application
