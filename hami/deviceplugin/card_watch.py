"""Keeps the board true: which cards there are, and which are in service (spec/node 4; reports B85, B88, B106).

NVML gone means that all cards are out of service, not that the plugin ends; NVML back brings them back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import structlog

from hami.core.errors import DriverReplacedError, NvmlError
from hami.deviceplugin import event_reasons
from hami.deviceplugin.board import Board
from hami.deviceplugin.health import HealthTracker
from hami.deviceplugin.pair_scores import asymmetric
from hami.deviceplugin.registered import registered
from hami.deviceplugin.settings import PluginSettings, Recovery
from hami.nvml.probe import NO_EVENTS, CardFacts, DeviceProbe, HealthEvent, PairFacts
from hami.placement.ports import EventSink
from hami.vendors.nvidia.names import RECOVERED_KEY

_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class HealthStats:
    """For metrics: how often a card went out of service, and came back."""

    taken_out: int = 0
    taken_back: int = 0


class CardWatch:
    """Reads the driver and writes the board."""

    def __init__(
        self,
        settings: PluginSettings,
        board: Board,
        probe: DeviceProbe,
        events: EventSink,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._board = board
        self._probe = probe
        self._events = events
        self._monotonic_s = monotonic_s
        self._tracker = HealthTracker(settings.health)
        self._known: dict[str, CardFacts] = {}
        self.stats = HealthStats()
        self._said: set[str] = set()

    async def first_cards(self) -> None:
        """Waits until the driver shows at least one card. Says once why it waits."""
        pause_s = _FIRST_PAUSE_S
        while not self._board.state.everything:
            await self.refresh()
            if self._board.state.everything:
                return
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)

    async def run(self) -> None:
        """Watches list and health until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_list())
            if self._settings.health.enabled:
                tasks.create_task(self._watch_events())

    async def refresh(self) -> None:
        """Reads the list of cards and who does not answer, once. Raises DriverReplacedError."""
        try:
            cards = await self._probe.cards()
            pairs = await self._pairs()
            lost = await self._probe.lost()
            damaged = await self._probe.damaged()
        except NvmlError as error:
            self._say(event_reasons.DRIVER_UNAVAILABLE, f"the driver cannot be asked for cards: {error}")
            self._tracker.silent_driver(self._known, str(error))
            await self._publish_health()
            if isinstance(error, DriverReplacedError):
                raise
            return
        for problem in cards.problems:
            self._say(event_reasons.CARD_UNREADABLE, f"a card is left out: {problem}")
        gone = dict.fromkeys(self._known.keys() - {card.uuid for card in cards.cards}, "not listed any more")
        self._known.update({card.uuid: card for card in cards.cards})
        self._tracker.lost({**gone, **lost})
        self._tracker.damaged(damaged)
        await self._board.set_cards(tuple(self._known.values()), pairs)
        self._say_what_is_odd()
        await self._publish_health()

    async def forgive(self, cards: frozenset[str] | None) -> frozenset[str] | None:
        """Implements `operator_recovery.Forgiver`."""
        if Recovery.OPERATOR not in self._settings.health.recovery:
            return None
        forgiven = self._tracker.forgive(self._known if cards is None else cards)
        await self._publish_health()
        return forgiven

    async def _watch_list(self) -> None:
        while True:
            await asyncio.sleep(self._settings.report_interval_s)
            await self.refresh()

    async def _watch_events(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                events = await self._probe.events(self._settings.health.poll_s)
            except NvmlError as error:
                await self.refresh()
                if self._tracker.answered:
                    text = f"error events cannot be heard: {error}. Only cards that do not answer are noticed"
                    self._say(event_reasons.CARD_SILENT, text)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
                continue
            pause_s = _FIRST_PAUSE_S
            self._tracker.events(events, self._known, self._monotonic_s())
            self._say_silent(events)
            await self._publish_health()

    async def _publish_health(self) -> None:
        before = self._board.state.unhealthy
        shown = {card.uuid for card in self._board.state.everything}
        # Cards that the configuration hides are nobody's concern here.
        after = {uuid: why for uuid, why in self._tracker.unhealthy(self._monotonic_s()).items() if uuid in shown}
        await self._board.set_unhealthy(after)
        node = self._settings.node_name
        for uuid in sorted(after.keys() - before.keys()):
            self.stats.taken_out += 1
            log.error("card out of service", card=uuid, why=after[uuid])
            message = f"card {uuid} is out of service: {after[uuid]}. {self._way_back(uuid)}"
            self._events.node_event(node, warning=True, reason=event_reasons.CARD_UNHEALTHY, message=message)
        for uuid in sorted(before.keys() - after.keys()):
            self.stats.taken_back += 1
            log.info("card in service again", card=uuid)
            message = f"card {uuid} is in service again (was: {before[uuid]})"
            self._events.node_event(node, warning=False, reason=event_reasons.CARD_HEALTHY, message=message)

    def _way_back(self, uuid: str) -> str:
        """What brings the card back, for people."""
        health = self._settings.health
        ways = {
            Recovery.QUIET: f"after {health.xid_quiet_s:g} s without errors" if health.xid_quiet_s > 0 else "",
            Recovery.RESET: "after a reset",
            Recovery.OPERATOR: f"by the annotation {RECOVERED_KEY}={uuid} on the node",
        }
        chosen = [text for way, text in ways.items() if way in health.recovery and text]
        return f"It comes back {', or '.join(chosen)}" if chosen else "It comes back when the plugin is started anew"

    def _say_silent(self, events: Iterable[HealthEvent]) -> None:
        for event in events:
            if event.kind == NO_EVENTS:
                text = f"card {event.uuid} reports no error events: only a card that does not answer is noticed"
                self._say(event_reasons.CARD_SILENT, text)

    async def _pairs(self) -> tuple[PairFacts, ...]:
        return await self._probe.pairs() if self._settings.pair_scores else ()

    def _say_what_is_odd(self) -> None:
        state, settings = self._board.state, self._settings
        if state.replicas < settings.nvidia.device_split_count:
            self._say(
                event_reasons.SPLIT_COUNT_CAPPED,
                f"split count {settings.nvidia.device_split_count} on {len(state.cards)} cards exceeds kubelet's"
                f" message limit of 4 MiB: {state.replicas} is used",
            )
        for each in registered(state, settings)[1]:
            self._say(event_reasons.CARD_UNREADABLE, f"card {each.uuid} is not registered: {each.why}")
        for first, second in asymmetric(state.pairs):
            self._say(event_reasons.ASYMMETRIC_LINK, f"cards {first} and {second} disagree about their links")
        uuids, indexes = self._known.keys(), {card.index for card in self._known.values()}
        for hidden in {*settings.hidden_uuids} - uuids:
            self._say(event_reasons.NODE_CONFIG, f"filterdevices names card {hidden}, which is not on this node")
        for index in {*settings.hidden_indexes} - indexes:
            self._say(event_reasons.NODE_CONFIG, f"filterdevices names index {index}, which is not on this node")

    def _say(self, reason: str, message: str) -> None:
        """A warning on the node, each text once per process."""
        if message not in self._said:
            self._said.add(message)
            log.warning(message, node=self._settings.node_name)
            self._events.node_event(self._settings.node_name, warning=True, reason=reason, message=message)
