"""The device plugin of one node: everything wired, from `run` to its cancellation (spec/node 2, design 3)."""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import Final

import structlog

from hami.core.errors import HamiError
from hami.deviceplugin import event_reasons
from hami.deviceplugin.allocate import AllocateStats, Allocator
from hami.deviceplugin.annotate import Annotator
from hami.deviceplugin.board import Board
from hami.deviceplugin.card_watch import CardWatch, HealthStats
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.housekeeping import Housekeeping
from hami.deviceplugin.offer_check import OfferCheck
from hami.deviceplugin.operator_recovery import OperatorRecovery
from hami.deviceplugin.preferred import Preferences
from hami.deviceplugin.registration import KubeletError, register, wait_until_anew
from hami.deviceplugin.server import PluginServer
from hami.deviceplugin.servicer import DevicePluginServicer
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.single import AnotherPluginError, NodeLock
from hami.kube.backoff import Backoff
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.nvml.probe import DeviceProbe
from hami.placement.ports import EventSink

_RETRY_CAP_S: Final = 30.0

log = structlog.get_logger(__name__)


class Plugin:
    """Serves one resource on one node. The caller owns client, probe and events, and runs `run` as a task.

    `registered` is set while kubelet knows us; `stats` counts calls; `board` has the cards. To restart with new
    settings, cancel `run` and make another Plugin.
    """

    def __init__(self, settings: PluginSettings, client: ApiClient, probe: DeviceProbe, events: EventSink) -> None:
        writer = KubeWriter(client)
        self._settings = settings
        self._events = events
        self.board = Board(settings)
        self.registered = asyncio.Event()
        self.generation = 0
        """How often kubelet has registered us."""
        self._setup = ContainerSetup(settings)
        self._allocator = Allocator(settings, self.board, writer, events, self._setup, lambda: self.generation)
        self._servicer = DevicePluginServicer(settings, self.board, self._allocator, Preferences(settings, writer))
        self._watch = CardWatch(settings, self.board, probe, events, time.monotonic)
        check = self.offer_check = OfferCheck(settings, events, time.monotonic)
        recovery = OperatorRecovery(writer, events, self._watch)
        self._annotator = Annotator(settings, self.board, writer, _now, check, recovery)
        self._housekeeping = Housekeeping(settings, writer)
        self._lock = NodeLock(settings.kubelet_dir, settings.plugin_socket.stem)
        self._said = ""

    @property
    def stats(self) -> AllocateStats:
        return self._allocator.stats

    @property
    def health_stats(self) -> HealthStats:
        return self._watch.stats

    async def run(self) -> None:
        """Serves until cancelled. Nothing that kubelet, the driver or the API server does ends it.

        Raises ConfigError for settings that can never work.
        """
        for note in self._settings.notes:
            log.warning(note, node=self._settings.node_name)
            self._node_warning(event_reasons.NODE_CONFIG, note)
        try:
            await self._watch.first_cards()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run())
                tasks.create_task(self._annotator.run())
                tasks.create_task(self._housekeeping.run())
                tasks.create_task(self._serve())
        finally:
            self.registered.clear()
            self._lock.release()
            await self._allocator.drain()

    async def remove_annotations(self) -> None:
        """Takes back what was written to the node (`--cleanup`). Raises ApiError and TransportError."""
        await self._annotator.remove()

    async def _serve(self) -> None:
        backoff = Backoff(0.5, _RETRY_CAP_S)
        while True:
            try:
                reason = await self._serve_once(backoff)
            except (KubeletError, AnotherPluginError, OSError) as error:
                self._say_trouble(error)
                await asyncio.sleep(backoff.next_s())
            else:
                log.info("starting anew", why=reason)
            finally:
                self.registered.clear()

    async def _serve_once(self, backoff: Backoff) -> str:
        """Serves and registers; returns why it has to be done again."""
        settings = self._settings
        # Taken again each time: the folder may have been made anew, with the lock's file gone.
        self._lock.acquire()
        await self._setup.describe(self.board.state)
        async with PluginServer(settings.plugin_socket, self._servicer):
            await register(
                settings.kubelet_socket,
                settings.plugin_socket.name,
                settings.nvidia.resource_count_name,
                preferred=settings.preferred_allocation,
            )
            self.generation += 1
            self.registered.set()
            self._said = ""
            backoff.reset()
            log.info("registered with kubelet", resource=settings.nvidia.resource_count_name)
            return await wait_until_anew(settings.kubelet_socket, settings.plugin_socket, settings.watch_interval_s)

    def _say_trouble(self, error: HamiError | OSError) -> None:
        message = str(error)
        log.warning("not registered with kubelet, will retry", why=message)
        if isinstance(error, AnotherPluginError) and message != self._said:
            self._node_warning(event_reasons.ANOTHER_PLUGIN, message)
        self._said = message

    def _node_warning(self, reason: str, message: str) -> None:
        self._events.node_event(self._settings.node_name, warning=True, reason=reason, message=message)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
