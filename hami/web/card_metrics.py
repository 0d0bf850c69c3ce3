"""`GET /metrics` of the scheduler: upstream's card, pod and build metrics from the live state (spec/contract 3.6).

Series exist exactly as long as what they speak of. What belongs to a node is kept per node while that node stays as it
is (`web.page_cache`); the little that does not is made anew by every scrape.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from hami.core.model import NO_USE
from hami.core.reasons import NODE_UNREGISTERED
from hami.obs import metrics
from hami.obs.shared_series import BUILD, BUILD_LABELS, BUILD_TEXT, ZONE, build_values
from hami.placement.world import World
from hami.web import metric_names
from hami.web.deflated import Compressor, Piece
from hami.web.exposition import Family, Row, as_metric, texts
from hami.web.legacy_metrics import with_legacy, with_legacy_of_nodes
from hami.web.node_families import NODE_FAMILIES, facts_of, known_names
from hami.web.page_cache import PageCache
from hami.web.streamed import Streamed, Turns, gzipped, plain, takes_gzip

_NODES_IN_A_STEP: Final = 500


class Stats(Protocol):
    """What a reflector counts."""

    lists: int
    last_heard_monotonic_s: float


def snapshot(world: World, *, legacy: bool = False) -> CollectorRegistry:
    """The state as it is now, taken on the loop, as families that any thread may gather. Nothing of it is kept."""
    world.settle_now()
    nodes = [facts_of(world, name) for name in known_names(world)]
    of_nodes = with_legacy_of_nodes(NODE_FAMILIES) if legacy else NODE_FAMILIES
    few = [family for family in _few(world) if family is not None]
    registry = CollectorRegistry()
    families = [*(family.over(nodes) for family in of_nodes), *(with_legacy(few) if legacy else few)]
    registry.register(_Families(families))
    return registry


class _Families(Collector):
    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return map(as_metric, self._families)


class Page:
    """The page of `/metrics`, in pieces and in slices: tens of thousands of cards take longer than the loop may wait
    (design 4, promise 7). With legacy names each family is followed by its twin.

    A replica that does not lead (`leads`) tells of itself only: sums over all replicas would count cards twice.
    """

    def __init__(self, world: World, *, legacy: bool = False, leads: Callable[[], bool] = lambda: True) -> None:
        self._world = world
        self._legacy = legacy
        self._leads = leads
        self.cache = PageCache(world, tuple(with_legacy_of_nodes(NODE_FAMILIES) if legacy else NODE_FAMILIES))
        self._compressor = Compressor()

    async def pieces(self, turns: Turns) -> AsyncIterator[Piece]:
        """The whole page as it is now."""
        await self._world.settle()
        leads = self._leads()
        if leads:
            async for piece in self.cache.pieces(turns):
                yield piece
        else:
            await self.cache.clear()
        for made in _few(self._world) if leads else _own(self._world):
            await turns.give_way()
            few = () if made is None else (made,)
            for family in with_legacy(few) if leads and self._legacy else few:
                for text in texts(family):
                    yield self._compressor.piece(text.encode())
                    await turns.give_way()
        yield self._compressor.piece(generate_latest(metrics.registry))


def _few(world: World) -> Iterator[Family | None]:
    yield from _quotas(world)
    yield from _own(world)
    yield _of_few(BUILD, BUILD_TEXT, BUILD_LABELS, [(build_values(), 1)])


def _own(world: World) -> Iterator[Family | None]:
    """What every replica tells. A None says only that time has passed."""
    out = unreadable = 0
    for number, name in enumerate(world.inventory.names()):
        if not number % _NODES_IN_A_STEP:
            yield None
        view, record = world.view(name), world.inventory.get(name)
        out += view is not None and bool(view.problem) and view.problem != NODE_UNREGISTERED
        unreadable += record is not None and any(cards.problem for cards in record.cards.values())
    yield _of_few("hami_scheduler_nodes_out", "Registered nodes that take no new shares", (), [((), out)])
    kinds: list[Row] = [(("register",), unreadable), (("allocation",), len(world.ledger.undecodable))]
    yield _of_few("hami_scheduler_undecodable", "Annotations that cannot be read, by kind", ("kind",), kinds)
    expired: list[Row] = [((), world.ledger.expired_total)]
    yield _of_few("hami_scheduler_reservations_expired", "Reservations dropped by the backstop", (), expired)


def _of_few(name: str, text: str, labels: tuple[str, ...], rows: list[Row]) -> Family:
    return Family(name, text, labels, lambda: rows)


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
    yield _of_few(metric_names.QUOTA_USED, text, (*labels, "limit"), used)


def app(
    world: World, stats: Mapping[str, Stats], *, legacy: bool = False, leads: Callable[[], bool] = lambda: True
) -> FastAPI:
    """The application of the metrics listener; `legacy`: names of HAMi before 2.9 as well; `leads`: see `Page`."""
    application = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    page = Page(world, legacy=legacy, leads=leads)

    @application.get("/metrics")
    async def scrape(request: Request) -> Response:
        for kind, of_kind in stats.items():
            metrics.relists.labels(kind).set(of_kind.lists)
            metrics.last_event_age_seconds.labels(kind).set(time.monotonic() - of_kind.last_heard_monotonic_s)
        turns = Turns()
        pieces = page.pieces(turns)
        if takes_gzip(request.headers.get("accept-encoding", "")):
            return Streamed(gzipped(pieces, turns), CONTENT_TYPE_LATEST, gzip=True)
        return Streamed(plain(pieces, turns), CONTENT_TYPE_LATEST)

    return application
