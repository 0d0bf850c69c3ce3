"""`hami scheduler`: the webhook and the extender in one process, wired."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import socket
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import structlog
import uvloop

from hami import __version__
from hami.apps import runtime
from hami.apps.device_config_reload import registry_of
from hami.apps.quota_watch import QuotaWatch
from hami.apps.upkeep import Upkeep
from hami.certs.reload import ServingContext
from hami.config import device_config, flags
from hami.config import scheduler as scheduler_config
from hami.config.device_config import DeviceConfig
from hami.config.scheduler import SchedulerSettings
from hami.core import admission
from hami.core.device_type import Registry
from hami.core.objects import Node, Pod, bare_pod_decoder, node_decoder
from hami.kube import paths
from hami.kube.backoff import Backoff
from hami.kube.client import ApiClient
from hami.kube.events import EventRecorder
from hami.kube.leader import Leadership
from hami.kube.ratelimit import Lane
from hami.kube.reflector import EventType, Reflector, ReflectorStats
from hami.kube.role_label import RoleLabel
from hami.kube.writer import KubeWriter
from hami.obs import logs, metrics
from hami.placement.all_fits import AllFits
from hami.placement.announce import AnnouncingFilters
from hami.placement.auditor import Auditor
from hami.placement.bind import Binder, BindSettings
from hami.placement.engine import Engine
from hami.placement.pod_labels import PodLabels
from hami.placement.preemptable import PreemptableFilters
from hami.placement.preemption import Preemption
from hami.placement.reservations import ReservationCheck
from hami.placement.token_sweep import TokenSweep
from hami.placement.world import World
from hami.vendors.nvidia.config import NvidiaConfig
from hami.web import app, asgi, card_metrics
from hami.web.extender import Extender, Filters
from hami.web.server import Listener, serving
from hami.web.verbs import Verbs
from hami.web.webhook import Webhook

_SILENT_LIMIT_S: Final = 300.0
"""Watches that were silent are made anew after 90 s; who has heard nothing for so long knows nothing (report B55)."""
_WATCH_PAUSE_S: Final = 8.0
"""Longest pause before the API server is tried again: pods wait for its return, and there is one scheduler only."""
_RARELY: Final = 1000
_SELDOM: Final = 10
"""Middle collections before a full one: until the first lists are in, and after (Python's own number)."""

log = structlog.get_logger("hami.scheduler")


def main(argv: Sequence[str]) -> int:
    """Runs until a signal. Raises HamiError when it cannot start."""
    settings, ignored = scheduler_config.load(argv, flags.environment())
    logs.configure(settings.verbosity)
    config = device_config.read(settings.device_config_file)
    for flag in ignored:
        log.warning("flag has no effect", flag=f"--{flag}")
    for note in config.notes:
        log.warning("device configuration", note=note)
    scheduler = Scheduler(settings, registry_of(config), config)
    return uvloop.run(runtime.run_until_signal(scheduler.run()))


class Scheduler:
    """One scheduler process: what it is made of, and the order in which that starts."""

    def __init__(self, settings: SchedulerSettings, registry: Registry, config: DeviceConfig | None = None) -> None:
        """`config`: what the registry was made from, the defaults where it is not given."""
        self._settings = settings
        self._config = config or DeviceConfig(NvidiaConfig())
        self._clock = runtime.SystemClock()
        self.world = World(registry, settings.policies, self._clock, node_label_selector=settings.node_label_selector)
        self._synced = asyncio.Event()
        self._binder: Binder | None = None
        self._leadership: Leadership | None = None
        self._role_label: RoleLabel | None = None
        self._upkeep: Upkeep | None = None
        self._watches: tuple[ReflectorStats, ...] = ()
        self.listeners: list[Listener] = []

    async def run(self) -> None:
        """Serves until cancelled; fails when a part fails."""
        # Modules and their functions stay as long as the process: collections need not look at them. Nor at all that
        # the first lists bring, again and again as it grows: see _wait_synced.
        gc.collect()
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], _RARELY)
        settings = self._settings
        client = await ApiClient.load(settings.kubeconfig or None, settings.qps, settings.burst, settings.api_timeout_s)
        recorder = self.world.rejections.sink = EventRecorder(client, settings.scheduler_name)
        upkeep = self._upkeep = Upkeep(settings, client, recorder, self.world, self._config)
        tls = await upkeep.serving()
        writer = KubeWriter(client)
        labels = PodLabels(writer, self._leads)
        nodes, pods = self._reflectors(client, labels)
        self._watches = (nodes.stats, pods.stats)
        quotas = QuotaWatch(client, self.world)
        application = self._application(writer, recorder, quotas)
        self.listeners = self._listeners(application, tls, {"nodes": nodes.stats, "pods": pods.stats})
        for listener in self.listeners:
            log.info("listening", url=listener.url, version=__version__, pid=os.getpid())
        jobs = [recorder.run(), nodes.run(), pods.run(), quotas.run(), labels.run(), self.world.sweep()]
        jobs += self._upkeep_of_books(client, recorder)
        jobs.append(self._wait_synced(nodes, pods, quotas))
        jobs += self._follow_leadership(client)
        jobs += upkeep.jobs(self._synced)
        try:
            async with serving(self.listeners):
                await runtime.run_together(jobs)
        finally:
            if self._binder:
                await self._binder.drain()
            await recorder.drain()
            await client.close()

    def _upkeep_of_books(self, client: ApiClient, recorder: EventRecorder) -> list[Coroutine[Any, Any, None]]:
        """What keeps books and tokens true beside the watches."""
        world = self.world
        sweep = TokenSweep(world, KubeWriter(client, Lane.DEFAULT), self._settings.node_lock_timeout_s, self._leads)
        return [
            self._audit(Auditor(world, KubeWriter(client, Lane.DEFAULT), recorder)),
            ReservationCheck(world, KubeWriter(client, Lane.DEFAULT)).run(),
            world.waking.run(KubeWriter(client, Lane.DEFAULT), world.settle, world.is_gone),
            sweep.run(),
        ]

    def _listeners(
        self, application: asgi.App, tls: ServingContext | None, stats: dict[str, ReflectorStats]
    ) -> list[Listener]:
        settings = self._settings
        context = tls.context if tls else None
        listeners = [Listener(address, application, context) for address in settings.listen]
        if settings.metrics_listen:
            metrics_app = card_metrics.app(self.world, stats, legacy=settings.legacy_metrics, leads=self._leads)
            listeners.append(Listener(settings.metrics_listen, metrics_app, None))
        return listeners

    def _application(self, writer: KubeWriter, recorder: EventRecorder, quotas: QuotaWatch) -> asgi.App:
        settings = self._settings
        binder = self._binder = Binder(
            self.world,
            writer,
            recorder,
            self._clock,
            BindSettings(
                identity=settings.pod_name or settings.identity or socket.gethostname(),
                wait_s=settings.node_lock_retry_timeout_s,
                token_expiry_s=settings.node_lock_timeout_s,
            ),
        )
        review = functools.partial(
            admission.review,
            registry=self.world.registry,
            settings=admission.AdmissionSettings(
                scheduler_name=settings.scheduler_name,
                force_overwrite_default_scheduler=settings.force_overwrite_default_scheduler,
                allow_disable_control=settings.allow_disable_control,
                warn_only=settings.warn_only,
            ),
            quota=quotas.advise,
        )
        filters: Filters = Engine(self.world)
        if settings.patch_in_filter:
            filters = AnnouncingFilters(filters, self.world, writer)
        filters = PreemptableFilters(filters, self.world, enabled=settings.preempt)
        every_fit = AllFits(self.world, filters)
        extender = Extender(filters, binder, self, recorder, every_fit, always_every_fit=settings.all_feasible)
        verbs = Verbs(self, every_fit, Preemption(self.world, writer) if settings.preempt else None)
        return app.build(extender, Webhook(review), self.missing, verbs.routes())

    def _follow_leadership(self, client: ApiClient) -> list[Coroutine[Any, Any, None]]:
        """What keeps this replica's role true; without election it always leads."""
        settings = self._settings
        jobs = []
        if settings.pod_name and settings.pod_namespace:
            writer = KubeWriter(client, Lane.DEFAULT)
            self._role_label = RoleLabel(writer, settings.pod_namespace, settings.pod_name)
            jobs.append(self._role_label.run())
        if settings.leader_elect:
            host = settings.identity or socket.gethostname()
            self._leadership = Leadership(
                client, settings.lease_namespace, settings.lease_name, host, self._on_leadership
            )
            jobs.append(self._leadership.run())
        self._show_role(leads=not settings.leader_elect)
        return jobs

    def _leads(self) -> bool:
        return self._leadership is None or self._leadership.leads

    def _on_leadership(self, leads: bool) -> None:
        assert self._binder is not None
        if leads:
            self._binder.new_term()
        else:
            self._binder.leadership_lost()
        self._show_role(leads=leads)

    def _show_role(self, *, leads: bool) -> None:
        metrics.leads.set(leads)
        if self._role_label is not None:
            self._role_label.set(leads)

    def _reflectors(self, client: ApiClient, labels: PodLabels) -> tuple[Reflector[Node], Reflector[Pod]]:
        world = self.world

        def on_pod(kind: EventType, pod: Pod) -> None:
            if kind is EventType.DELETED:
                world.on_pod_deleted(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
                labels.on_pod_deleted(pod.metadata.uid)
            else:
                world.on_pod(pod)
                world.rejections.saw(pod, self._clock.monotonic_s(), self._clock.unix_s())
                labels.on_pod(pod)
                if self._role_label is not None:
                    self._role_label.saw(pod)

        nodes = Reflector(
            client,
            paths.NODES,
            node_decoder,
            None,
            self._on_node,
            listing=world.node_listing,
            backoff=Backoff(cap_s=_WATCH_PAUSE_S),
        )
        pods = Reflector(
            client,
            paths.PODS,
            bare_pod_decoder,
            None,
            on_pod,
            listing=world.pod_listing,
            backoff=Backoff(cap_s=_WATCH_PAUSE_S),
            on_restored=world.ledger.forget_versions,
        )
        return nodes, pods

    def _on_node(self, kind: EventType, node: Node) -> None:
        if kind is EventType.DELETED:
            self.world.on_node_deleted(node.name, node.metadata.uid)
        else:
            self.world.on_node(node)

    async def _wait_synced(self, nodes: Reflector[Node], pods: Reflector[Pod], quotas: QuotaWatch) -> None:
        await nodes.ready.wait()
        await pods.ready.wait()
        await quotas.settled.wait()
        # What the lists brought stays for long: later collections do not look at it. Nor does one now, which would take
        # longer than the loop may wait (design 4, promise 7).
        gc.freeze()
        gc.set_threshold(*gc.get_threshold()[:2], _SELDOM)
        self._synced.set()
        log.info("synced", nodes=len(self.world.inventory), scheduler=self._settings.scheduler_name)

    async def _audit(self, auditor: Auditor) -> None:
        await self._synced.wait()
        await auditor.run()

    def missing(self) -> str:
        """What readiness waits for; empty when ready. A server in order sends a bookmark about once a minute."""
        if not self._synced.is_set():
            return "waiting for the first complete list of nodes and pods"
        if self._upkeep is not None and (untrusted := self._upkeep.missing()):
            return untrusted
        silent_s = max((time.monotonic() - each.last_heard_monotonic_s for each in self._watches), default=0.0)
        return f"nothing heard from the API server for {silent_s:.0f} s" if silent_s > _SILENT_LIMIT_S else ""

    async def wait_open(self) -> str:
        """`web.extender.Gate`: filter and bind wait until the state is complete; only the leader answers them."""
        if not self._synced.is_set():
            await self._synced.wait()
        return await self._leadership.refusal() if self._leadership is not None else ""
