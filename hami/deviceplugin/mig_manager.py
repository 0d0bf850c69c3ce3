"""Keeps MIG instances true to what pods hold: one owner of every change on the cards (spec/node 5.3, 5.4, trap T-17).

Nothing is remembered between two looks: the driver says which instances exist, the API server which pods hold places.
So a plugin that was killed at any moment, between the two halves of an instance or before it told anybody, finds the
same state as one that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
import structlog

from hami.core.errors import ApiError, NvmlError, TransportError
from hami.deviceplugin import event_reasons
from hami.deviceplugin.board import Board
from hami.deviceplugin.mig_cards import may_be_mig_card, profile_of
from hami.deviceplugin.mig_owned import OwnedCards
from hami.deviceplugin.mig_plan import Hold, Holds, holds_of, judge, overlapping
from hami.deviceplugin.settings import PluginSettings
from hami.kube.writer import KubeWriter
from hami.nvml.probe import CardFacts, DeviceProbe
from hami.placement.ports import EventSink
from hami.vendors.nvidia.names import MODE_CORE, MODE_MIG

_MOST_REMEMBERED: Final = 256

log = structlog.get_logger(__name__)


class MigManager:
    """`turn` is held by whoever changes instances: the look of every few seconds, or an Allocate call."""

    def __init__(
        self,
        settings: PluginSettings,
        board: Board,
        probe: DeviceProbe,
        writer: KubeWriter,
        events: EventSink,
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        """`refresh` reads the cards anew for everybody, after a card's mode was switched."""
        self._settings = settings
        self._board = board
        self._probe = probe
        self._writer = writer
        self._events = events
        self._refresh = refresh
        self._owned = OwnedCards(settings.state_dir)
        self._nothing = False
        """At the last look there was no instance, and nothing else to do."""
        self._said: set[str] = set()
        self._lost: set[tuple[str, str]] = set()
        """Pods and instances that could not be made again."""
        self.turn = asyncio.Lock()

    async def begin(self) -> None:
        """Tells the board which cards this plugin looks after, before anything is offered."""
        await self._board.set_owned(self._owned.read())

    async def run(self) -> None:
        """Looks every period until cancelled; what fails is said and tried again."""
        while True:
            await asyncio.sleep(self._settings.mig_interval_s)
            await self.look()

    async def look(self) -> None:
        """One look. Never raises for what the driver, the API server or the disk answer; changes nothing then."""
        try:
            async with self.turn:
                switched = await self._look()
        except (NvmlError, ApiError, TransportError, OSError) as error:
            self._say(event_reasons.MIG_NOT_LOOKED_AFTER, f"MIG instances are not looked after: {error}")
            return
        if switched:
            await self._refresh()

    async def cards(self) -> tuple[CardFacts, ...]:
        """The cards with the instances that they have now; those known before, without, where the driver is silent."""
        try:
            return (await self._probe.cards()).cards
        except NvmlError as error:
            log.warning("MIG devices not read", why=str(error))
            return self._board.state.everything

    async def _look(self) -> bool:
        """Whether a card's mode was switched."""
        wanted = self._settings.mode == MODE_MIG
        owned = self._owned.read()
        await self._board.set_owned(owned)
        if not wanted and not owned:
            return False
        cards = [card for card in (await self._probe.cards()).cards if self._managed(card, owned)]
        nothing = wanted and all(card.mig_enabled and not card.mig_instances for card in cards)
        before, self._nothing = self._nothing, nothing
        if not cards or (nothing and before):
            # A list of pods would tell nothing new: they get their instances by Allocate.
            return False
        # The pods are read after the instances: one that has no pod in this list lost it before.
        holds = holds_of(await self._writer.list_pods_on_node(self._settings.node_name))
        for pod, why in holds.unreadable.items():
            self._say(event_reasons.MIG_UNREADABLE, f"MIG instances of pod {pod} are left alone: {why}")
        in_use = frozenset(each.uuid for each in await self._probe.processes())
        change = self._keep if wanted else self._give_back
        return any([await change(card, holds, in_use) for card in cards])

    async def _keep(self, card: CardFacts, holds: Holds, in_use: frozenset[str]) -> bool:
        """A card of a node in mode mig: MIG on, instances without a pod taken away, lost ones made again."""
        switched = False
        self._owned.add(card.uuid)
        if not card.mig_enabled:
            if not await self._switch_on(card, holds, in_use):
                return False
            switched = True
        left = await self._sweep(card, holds, in_use)
        for hold in holds.on(card.uuid):
            lost = (hold.pod_uid, hold.reservation.mig_uuid or "")
            if lost[1] and lost not in self._lost and not overlapping(left, hold.reservation.placement):
                await self._restore(card, hold)
        return switched

    async def _switch_on(self, card: CardFacts, holds: Holds, in_use: frozenset[str]) -> bool:
        user = holds.sharers.get(card.uuid) or ("a process" if card.uuid in in_use else "")
        if not user and holds.protects(card.uuid):
            user = "a pod whose annotations cannot be read"
        if user:
            self._say(
                event_reasons.MIG_MODE_NOT_CHANGED,
                f"card {card.uuid} is no MIG card yet: {user} uses it; it becomes one when that ends",
            )
            return False
        return await self._switch(card, enabled=True)

    async def _give_back(self, card: CardFacts, holds: Holds, in_use: frozenset[str]) -> bool:
        """A card that was a MIG card when the node's mode was another: off, as soon as nobody has a part of it."""
        left = await self._sweep(card, holds, in_use)
        users = [hold.pod_key for hold in holds.on(card.uuid)] or [f"instance {each.id}" for each in left.mig_instances]
        if users:
            self._say(
                event_reasons.MIG_MODE_NOT_CHANGED,
                f"card {card.uuid} stays a MIG card: {', '.join(dict.fromkeys(users))} still uses it; it is offered"
                " again when that ends",
            )
            return False
        if card.mig_enabled and not await self._switch(card, enabled=False):
            return False
        self._owned.remove(card.uuid)
        await self._board.set_owned(self._owned.read())
        return True

    async def _sweep(self, card: CardFacts, holds: Holds, in_use: frozenset[str]) -> CardFacts:
        """Takes idle instances away; the card with those that are left. What stays in use is not offered."""
        verdict = judge(card, holds, in_use)
        stuck = list(verdict.busy)
        for instance in verdict.idle:
            try:
                await self._probe.destroy_mig(card.uuid, instance.id)
            except NvmlError as error:
                stuck.append(instance)
                self._say(
                    event_reasons.MIG_INSTANCE_KEPT, f"MIG instance {instance.id} of {card.uuid} is not free: {error}"
                )
            else:
                log.info("MIG instance taken away", card=card.uuid, instance=instance.id, start=instance.placement)
        for instance in verdict.busy:
            self._say(
                event_reasons.MIG_INSTANCE_KEPT,
                f"MIG instance {instance.id} of {card.uuid} belongs to no pod of this node, and a process uses it:"
                " its place is not offered",
            )
        await self._board.set_blocked(card.uuid, tuple(each.placement for each in stuck))
        gone = {each.id for each in verdict.idle} - {each.id for each in stuck}
        return _without(card, gone)

    async def _restore(self, card: CardFacts, hold: Hold) -> None:
        """Makes the instance of a pod again that a restart of the machine took; the id has to be the same."""
        reservation = hold.reservation
        profile = profile_of(card, reservation.profile)
        if profile is None:
            return
        try:
            made = await self._probe.create_mig(card.uuid, profile.number, reservation.placement)
        except NvmlError as error:
            self._say_lost(hold, str(error))
            return
        if [each.uuid for each in made.compute] == [reservation.mig_uuid]:
            log.info("MIG instance made again", pod=hold.pod_key, id=reservation.mig_uuid)
            return
        await self._probe.destroy_mig(card.uuid, made.id)
        self._say_lost(hold, "the driver gives it another id now")

    async def _switch(self, card: CardFacts, *, enabled: bool) -> bool:
        try:
            await self._probe.set_mig_mode(card.uuid, enabled=enabled)
        except NvmlError as error:
            self._say(event_reasons.MIG_MODE_NOT_CHANGED, str(error))
            return False
        log.info("MIG mode switched", card=card.uuid, enabled=enabled)
        return True

    def _managed(self, card: CardFacts, owned: frozenset[str]) -> bool:
        """Cards that the configuration hides are never touched (trap T-27), nor cards without profiles."""
        settings = self._settings
        if card.uuid in settings.hidden_uuids or card.index in settings.hidden_indexes:
            return False
        return may_be_mig_card(card, settings) if settings.mode == MODE_MIG else card.uuid in owned

    def _say_lost(self, hold: Hold, why: str) -> None:
        self._lost.add((hold.pod_uid, hold.reservation.mig_uuid or ""))
        self._say(
            event_reasons.MIG_INSTANCE_LOST,
            f"MIG instance {hold.reservation.mig_uuid} of pod {hold.pod_key} is gone: {why}."
            " Delete the pod so that it is scheduled again",
        )

    def _say(self, reason: str, message: str) -> None:
        """A warning on the node, each text once for as long as it is remembered."""
        if len(self._said) >= _MOST_REMEMBERED:
            self._said.clear()
        if message not in self._said:
            self._said.add(message)
            log.warning(message, node=self._settings.node_name)
            self._events.node_event(self._settings.node_name, warning=True, reason=reason, message=message)


async def give_cards_back(
    settings: PluginSettings, probe: DeviceProbe, writer: KubeWriter, events: EventSink
) -> frozenset[str]:
    """Switches MIG off on the cards of mode mig that no pod uses any more, for a plugin that leaves the node.

    Those that are left: a pod still uses them, or the driver or the API server does not answer, which is said.
    """
    other = msgspec.structs.replace(settings, mode=MODE_CORE)

    async def nobody() -> None:
        return

    manager = MigManager(other, Board(other), probe, writer, events, nobody)
    await manager.look()
    return OwnedCards(settings.state_dir).read()


def _without(card: CardFacts, gone: set[int]) -> CardFacts:
    return msgspec.structs.replace(
        card, mig_instances=tuple(each for each in card.mig_instances if each.id not in gone)
    )
