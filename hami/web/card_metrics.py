"""`GET /metrics` of the scheduler: upstream's card, pod and build metrics from the live state (spec/contract 3.6).

Series exist exactly as long as what they speak of: every scrape is gathered anew from the state, so nothing stale
stays. Core "ratios" are 0..100 and the memory ratio of a node's card is 0..1, as upstream has them.
"""

from __future__ import annotations

import asyncio
import functools
import platform
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami import __version__
from hami.core.codec import decode_mig_allocations
from hami.core.errors import DecodeError
from hami.core.model import NO_USE, Device, Use
from hami.core.reasons import NODE_UNREGISTERED
from hami.obs import metrics
from hami.placement.claims import Claim
from hami.placement.world import NodeView, World
from hami.web.exposition import Family, Row, as_metric, stream
from hami.web.legacy_metrics import with_legacy
from hami.web.streamed import Streamed

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
_NODES_IN_A_STEP: Final = 1000

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
    """The state as it is now, taken on the loop, as families that any thread may gather."""
    world.settle_now()
    views = [view for name in sorted(world.inventory.names()) if (view := world.view(name))]
    few = [*_quotas(world), _nodes_out(views), *_troubles(world)]
    families = _families(views, list(world.ledger.claims()), few)
    registry = CollectorRegistry()
    registry.register(_Families(list(with_legacy(families) if legacy else families)))
    return registry


class _Families(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return map(as_metric, self._families)


async def page(world: World, *, legacy: bool = False, leads: bool = True) -> AsyncIterator[bytes]:
    """The same as text, in chunks and in slices: tens of thousands of cards take longer than the loop may wait
    (design 4, promise 7). With legacy names each family is followed by its twin.

    A replica that does not lead (`leads`) tells of itself only: sums over all replicas would count cards twice.
    """
    await world.settle()
    views: list[NodeView] = []
    for number, name in enumerate(sorted(world.inventory.names()), start=1):
        if view := world.view(name):
            views.append(view)
        if not number % _NODES_IN_A_STEP:
            await asyncio.sleep(0)
    few = [*(_quotas(world) if leads else ()), _nodes_out(views)]
    await asyncio.sleep(0)
    few += _troubles(world)
    await asyncio.sleep(0)
    families = _families(views, list(world.ledger.claims()), few) if leads else iter(few)
    async for chunk in stream(with_legacy(families) if legacy else families):
        yield chunk
    yield generate_latest(metrics.registry)


def _families(views: list[NodeView], claims: list[Claim], few: list[Family]) -> Iterator[Family]:
    """Nothing of what they read changes afterwards, whenever their rows are made."""
    yield from _cards(views)
    yield from _overview(views)
    yield from _pods(claims)
    yield Family(
        "hami_node_gpu_mig_instance_info",
        "MIG instance that a pod holds, 1",
        MIG_LABELS,
        functools.partial(_mig_instances, views, claims),
    )
    yield from few
    labels = ("version", "revision", "build_date", "go_version", "compiler", "platform")
    build = (__version__, "", "", "", platform.python_implementation(), platform.machine())
    yield _of_few("hami_build_info", "Build", labels, [(build, 1)])


def _of_few(name: str, text: str, labels: tuple[str, ...], rows: list[Row]) -> Family:
    return Family(name, text, labels, lambda: iter(rows))


def _each_card(views: Iterable[NodeView]) -> Iterator[tuple[str, Device, Use]]:
    for view in views:
        for device, use in zip(view.state.devices, view.state.uses, strict=True):
            yield view.state.name, device, use


def _cards(views: list[NodeView]) -> Iterator[Family]:
    def rows(value: Callable[[Device, Use], float]) -> Iterator[Row]:
        for node, device, use in _each_card(views):
            yield (ZONE, node, device.id, str(device.index), device.type), value(device, use)

    for name, text, value in _CARD_METRICS:
        yield Family(name, text, CARD_LABELS, functools.partial(rows, value))


def _overview(views: list[NodeView]) -> Iterator[Family]:
    def allocated() -> Iterator[Row]:
        for node, device, use in _each_card(views):
            cores = str(device.core_percent)
            yield (ZONE, node, device.id, str(device.index), cores, device.type), use.memory_mib * MIB

    def overview() -> Iterator[Row]:
        for node, device, use in _each_card(views):
            size = (str(device.core_percent), str(device.memory_mib))
            yield (ZONE, node, device.id, str(device.index), *size, device.type), use.memory_mib * MIB

    def ratio() -> Iterator[Row]:
        for node, device, use in _each_card(views):
            if device.memory_mib:
                labels = (ZONE, node, device.id, str(device.index), device.type)
                yield labels, use.memory_mib / device.memory_mib

    card = CARD_LABELS[:4]
    yield Family(
        "hami_gpu_memory_allocated_bytes",
        "Memory promised to pods",
        (*card, "device_cores", "device_type"),
        allocated,
    )
    yield Family(
        "hami_node_gpu_overview",
        "Memory promised to pods, with the card's size",
        (*card, "device_cores", "device_memory_limit", "device_type"),
        overview,
    )
    yield Family(
        "hami_node_gpu_memory_allocated_ratio",
        "Share of a card's memory that is promised, 0 to 1",
        CARD_LABELS,
        ratio,
    )


def _pods(claims: list[Claim]) -> Iterator[Family]:
    def rows(value: Callable[[Use], float]) -> Iterator[Row]:
        for claim in claims:
            for device, use in claim.charges:
                yield (ZONE, claim.namespace, claim.node, claim.name, "0", device), value(use)

    memory, cores = "hami_vgpu_memory_allocated_bytes", "hami_vgpu_core_allocated_ratio"
    yield Family(
        memory, "Memory promised to a pod", POD_LABELS, functools.partial(rows, lambda use: use.memory_mib * MIB)
    )
    yield Family(
        cores, "Cores promised to a pod in percent", POD_LABELS, functools.partial(rows, lambda use: use.core_percent)
    )


def _mig_instances(views: list[NodeView], claims: list[Claim]) -> Iterator[Row | None]:
    """Instances that a device plugin made for pods, as their reservations say."""
    index_of: dict[tuple[str, str], int] = {}
    for claim in claims:
        if not (claim.slices and claim.source):
            yield None
            continue
        if not index_of:
            index_of = {(node, card.id): card.index for node, card, _ in _each_card(views)}
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
                yield (*card, each.mig_uuid, each.profile, *ids, *place), 1


def _quotas(world: World) -> Iterator[Family]:
    """Limits in force and what counts against them, in MiB, percent and cards; only where a limit is set."""
    labels = ("zone", "namespace", "quota_name")
    limits: list[Row] = []
    used: list[Row] = []
    for namespace, of_namespace in world.quotas.limits():
        uses = world.ledger.namespaces.of(namespace)
        for vendor in of_namespace:
            for limit, value in vendor.against(uses.get(vendor.word, NO_USE)):
                limits.append(((ZONE, namespace, limit.resource), limit.value))
                used.append(((ZONE, namespace, limit.resource, str(limit.value)), value))
    yield _of_few("hami_resource_quota_limit", "Limit of a namespace in MiB or percent", labels, limits)
    text = "What the pods of a namespace hold, in MiB or percent"
    yield _of_few("hami_resource_quota_used", text, (*labels, "limit"), used)


def _nodes_out(views: list[NodeView]) -> Family:
    out = sum(1 for view in views if view.problem and view.problem != NODE_UNREGISTERED)
    return _of_few("hami_scheduler_nodes_out", "Registered nodes that take no new shares", (), [((), out)])


def _troubles(world: World) -> Iterator[Family]:
    kinds: list[Row] = [
        (("register",), len(world.inventory.undecodable)),
        (("allocation",), len(world.ledger.undecodable)),
    ]
    yield _of_few("hami_scheduler_undecodable", "Annotations that cannot be read, by kind", ("kind",), kinds)
    expired: list[Row] = [((), world.ledger.expired_total)]
    yield _of_few("hami_scheduler_reservations_expired", "Reservations dropped by the backstop", (), expired)


def app(
    world: World, stats: Mapping[str, Stats], *, legacy: bool = False, leads: Callable[[], bool] = lambda: True
) -> FastAPI:
    """The application of the metrics listener; `legacy`: names of HAMi before 2.9 as well; `leads`: see `page`."""
    application = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @application.get("/metrics")
    async def scrape() -> Response:
        for kind, of_kind in stats.items():
            metrics.relists.labels(kind).set(of_kind.lists)
            metrics.last_event_age_seconds.labels(kind).set(time.monotonic() - of_kind.last_heard_monotonic_s)
        return Streamed(page(world, legacy=legacy, leads=leads()), CONTENT_TYPE_LATEST)

    return application
