"""One node's monitor: looks at containers every few seconds, and gives its metrics when asked."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Final

import structlog
from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector as MetricCollector
from prometheus_client.registry import CollectorRegistry

from hami.core.errors import NvmlError
from hami.monitor import legacy_metrics, metrics
from hami.monitor.collect import Collector, ListPods
from hami.monitor.containers import Look, give_feedback, look, release
from hami.monitor.pods import PodBook
from hami.monitor.settings import MonitorSettings
from hami.nvml.probe import CardLoad, DeviceProbe

log = structlog.get_logger(__name__)

_STUCK_LOOKS: Final = 12
"""So many intervals without a look mean that the monitor hangs (a minute)."""


class Monitor:
    """`pods` is fed by a watch of this node's pods; `list_pods` reads them from the API server."""

    def __init__(self, settings: MonitorSettings, probe: DeviceProbe, pods: PodBook, list_pods: ListPods) -> None:
        self._settings = settings
        self._probe = probe
        self._pods = pods
        self._collector = Collector(settings.vgpu_dir, settings.grace_s, list_pods)
        self._loads: tuple[CardLoad, ...] = ()
        self._driver_problem = "not asked yet"
        self._driver_errors = 0
        self._said: frozenset[str] = frozenset()
        self._problems: dict[str, str] = {}
        self._last_look_s: float | None = None
        self.looked = asyncio.Event()
        """Set after the first look."""

    async def run(self) -> None:
        """Runs until cancelled; then no container is left waiting.

        Start it when the pods are known, for folders of unknown pods are removed.
        """
        self._last_look_s = time.monotonic()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._follow_containers())
                group.create_task(self._follow_driver())
        finally:
            # Without the folder there is nobody to release, and the end that was asked for must stay the outcome.
            with contextlib.suppress(OSError):
                release(look(self._settings.vgpu_dir, self._pods.by_uid()).uses)

    async def tick(self) -> None:
        """One look: read, give feedback, clear away. Raises OSError where the folder cannot be listed."""
        found = await self._look()
        failed = await asyncio.to_thread(give_feedback, found.uses, time.time())
        self._report({**dict(found.problems), **dict(failed)})
        await self._collector.collect(found.strangers)
        self._last_look_s = time.monotonic()
        self.looked.set()

    async def ask_driver(self) -> None:
        """Takes the cards' load; after a failure there is none until the driver answers again."""
        try:
            loads = await self._probe.loads()
        except NvmlError as error:
            loads = ()
            self._driver_problem = str(error)
            problems = {f"no host metrics: {error}"}
        else:
            self._driver_problem = ""
            problems = {problem for load in loads for problem in load.problems}
        self._loads = tuple(load for load in loads if load.uuid)
        self._driver_errors += len(problems)
        for problem in sorted(problems - self._said):
            log.warning("the driver failed", why=problem)
        self._said = frozenset(problems)

    async def scrape(self) -> bytes:
        """The metrics as Prometheus reads them; regions are read now. Raises OSError."""
        found = await self._look()
        pods = self._pods.by_uid().values()
        families = list(self._families(found, metrics.mig_rows(self._settings.node_name, pods), time.time()))
        return await asyncio.to_thread(_text, families)

    def stuck(self) -> str:
        """Whether it runs but does not look at containers any more, in words; empty while all is well."""
        if self._last_look_s is None:
            return ""
        silent_s = time.monotonic() - self._last_look_s
        if silent_s > _STUCK_LOOKS * self._settings.look_interval_s:
            return f"no look at the containers for {silent_s:.0f} s"
        return ""

    async def _look(self) -> Look:
        return await asyncio.to_thread(look, self._settings.vgpu_dir, self._pods.by_uid())

    async def _follow_containers(self) -> None:
        while True:
            try:
                await self.tick()
            except OSError as error:
                log.warning("containers not looked at", why=str(error))
            await asyncio.sleep(self._settings.look_interval_s)

    async def _follow_driver(self) -> None:
        while True:
            await self.ask_driver()
            await asyncio.sleep(self._settings.look_interval_s)

    def _report(self, problems: dict[str, str]) -> None:
        """Says each problem once, not at every look."""
        for name, why in problems.items():
            if self._problems.get(name) != why:
                log.warning("container not readable", folder=name, why=why)
        self._problems = problems

    def _families(self, found: Look, mig: list[metrics.MigRow], now_s: float) -> Iterator[Metric]:
        settings = self._settings
        cards = metrics.rows(settings.node_name, found.uses)
        yield from metrics.own_families(
            settings.node_name,
            unreadable=len(found.problems),
            collected=self._collector.collected,
            host_readable=not self._driver_problem,
            driver_errors=self._driver_errors,
        )
        yield from metrics.host_families(settings.node_name, self._loads)
        yield from metrics.container_families(cards, now_s)
        yield metrics.mig_family(mig)
        if settings.legacy_metrics:
            yield from legacy_metrics.legacy_families(settings.node_name, self._loads, cards, mig, now_s)


class _Families(MetricCollector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _text(families: Iterable[Metric]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Families(families))
    return generate_latest(registry)
