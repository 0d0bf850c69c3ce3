"""The device plugin of one node: everything wired, from `run` to its cancellation (spec/node 2, design 3)."""

from __future__ import annotations

import asyncio
import datetime
import time

import structlog

from hami.deviceplugin import event_reasons
from hami.deviceplugin.allocate import AllocateStats, Allocator
from hami.deviceplugin.annotate import Annotator
from hami.deviceplugin.board import Board
from hami.deviceplugin.card_watch import CardWatch, HealthStats
from hami.deviceplugin.container_setup import ContainerSetup
from hami.deviceplugin.endpoint import Endpoint
from hami.deviceplugin.endpoints import Endpoints
from hami.deviceplugin.housekeeping import Housekeeping
from hami.deviceplugin.mig_allocate import MigAllocator
from hami.deviceplugin.mig_manager import MigManager
from hami.deviceplugin.mig_setup import MigSetup
from hami.deviceplugin.node_view import NodeView
from hami.deviceplugin.node_watch import NodeWatch
from hami.deviceplugin.offer_check import OfferCheck
from hami.deviceplugin.operator_recovery import OperatorRecovery
from hami.deviceplugin.preferred import Preferences
from hami.deviceplugin.seen_writer import SeenWriter
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shared_cards import SharedCards
from hami.deviceplugin.static_devices import StaticDevices
from hami.kube.client import ApiClient
from hami.nvml.probe import DeviceProbe
from hami.placement.ports import EventSink
from hami.vendors.nvidia.names import MODE_MIG

log = structlog.get_logger(__name__)


class Plugin:
    """Serves the resources of one node. The caller owns client, probe and events, and runs `run` as a task.

    `registered` is set while kubelet knows us; `stats` counts calls; `board` has the cards, `mig` looks after their
    instances; `view` is what is known of token and pods without asking. To restart with new settings, cancel `run` and
    make another Plugin.
    """

    def __init__(self, settings: PluginSettings, client: ApiClient, probe: DeviceProbe, events: EventSink) -> None:
        self.view = NodeView(settings.node_name, time.monotonic, settings.token_expiry_s)
        self._node_watch = NodeWatch(client, settings.node_name, self.view)
        writer = SeenWriter(client, self.view)
        self._settings = settings
        self._events = events
        self.board = Board(settings)
        self.registered = asyncio.Event()
        setup = ContainerSetup(settings)
        self._cdi = setup.cdi
        self._mig_setup = MigSetup(settings, self._cdi)
        self._watch = CardWatch(settings, self.board, probe, events, time.monotonic)
        check = self.offer_check = OfferCheck(settings, events, time.monotonic)
        recovery = OperatorRecovery(writer, events, self._watch)
        self._annotator = Annotator(settings, self.board, writer, _now, check, recovery)
        self._housekeeping = Housekeeping(settings, writer)
        self.mig = MigManager(settings, self.board, probe, writer, events, self._watch.refresh)
        mig = MigAllocator(settings, probe, writer, self.mig, self._mig_setup) if settings.mode == MODE_MIG else None
        self._allocator = Allocator(
            settings, self.board, self.view, writer, events, setup, mig, lambda: shared.generation
        )
        served = SharedCards(settings, self._allocator, Preferences(settings, self.view, writer))
        resource = settings.nvidia.resource_count_name
        shared = Endpoint(settings, self.board, events, resource, served, self._describe)
        self._endpoints = Endpoints(settings, self.board, events, shared, self._static, self.registered)

    @property
    def stats(self) -> AllocateStats:
        return self._allocator.stats

    @property
    def health_stats(self) -> HealthStats:
        return self._watch.stats

    async def run(self) -> None:
        """Serves until cancelled. Nothing else that kubelet, the driver or the API server does ends it.

        Raises ConfigError for settings that can never work, DriverReplacedError (NVIDIA/k8s-device-plugin#221).
        """
        for note in self._settings.notes:
            log.warning(note, node=self._settings.node_name)
            self._node_warning(event_reasons.NODE_CONFIG, note)
        try:
            await self.mig.begin()
            await self._watch.first_cards()
            await self.mig.look()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch.run())
                tasks.create_task(self._node_watch.run())
                tasks.create_task(self._annotator.run())
                tasks.create_task(self._housekeeping.run())
                tasks.create_task(self._cdi.keep())
                tasks.create_task(self.mig.run())
                tasks.create_task(self._endpoints.run())
        finally:
            self.registered.clear()
            await self._allocator.drain()

    def _static(self, resource: str) -> Endpoint:
        served = StaticDevices(self._settings, self.board, self._mig_setup, resource)
        return Endpoint(self._settings, self.board, self._events, resource, served, self._describe)

    async def _describe(self) -> None:
        """Writes the CDI specifications before names of theirs are handed out. Raises OSError."""
        cards = self.board.state.everything
        if self._settings.mode == MODE_MIG:
            cards = await self.mig.cards()
        await asyncio.to_thread(self._mig_setup.describe, cards)

    def _node_warning(self, reason: str, message: str) -> None:
        self._events.node_event(self._settings.node_name, warning=True, reason=reason, message=message)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
