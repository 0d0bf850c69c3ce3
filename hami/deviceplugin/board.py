"""The cards of this node as everybody in the plugin sees them, and the signal that something changed.

One owner: discovery and health write, ListAndWatch, Allocate and the node annotation read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

import msgspec

from hami.core.model import MigPlacement
from hami.deviceplugin.mig_cards import allowed_on
from hami.deviceplugin.mig_setup import MigDevice
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.static_mig import Offers, sort_cards
from hami.nvml.probe import CardFacts, PairFacts
from hami.vendors.nvidia.names import MODE_MIG

_KUBELET_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""kubelet takes no larger gRPC message (report B95)."""
_BYTES_PER_REPLICA: Final = 40
"""Beside the card's id: number, health word, NUMA node and protobuf's lengths, rounded up."""


class BoardState(msgspec.Struct, frozen=True):
    """What is offered: cards ordered by index, replicas per card, reasons of the cards out of service."""

    cards: tuple[CardFacts, ...] = ()
    """Cards that pods get shares or instances of."""
    replicas: int = 1
    unhealthy: dict[str, str] = {}
    pairs: tuple[PairFacts, ...] = ()
    static: dict[str, tuple[MigDevice, ...]] = {}
    """Resource -> MIG devices that an administrator made, offered as they are."""
    left_out: dict[str, str] = {}
    """Card -> why it is offered in no way."""
    strategy_problem: str = ""
    """Why the MIG strategy suits not this node's cards."""
    blocked: dict[str, tuple[MigPlacement, ...]] = {}
    """Card in mode mig -> places that instances hold which belong to no pod and cannot be taken away."""
    everything: tuple[CardFacts, ...] = ()
    """All cards that the configuration does not hide."""

    def card(self, uuid: str) -> CardFacts | None:
        return next((card for card in self.cards if card.uuid == uuid), None)

    def healthy(self, uuid: str) -> bool:
        return uuid not in self.unhealthy


class Board:
    """Holds the current state. Readers wait for `changed_since(version)`."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self._changed = asyncio.Condition()
        self._owned: frozenset[str] = frozenset()
        self._cards: tuple[CardFacts, ...] = ()
        self.state = BoardState()
        self.version = 0

    async def set_cards(self, cards: tuple[CardFacts, ...], pairs: tuple[PairFacts, ...] = ()) -> None:
        """Takes what the driver lists; cards that the node's configuration hides are left out (report B101)."""
        self._cards = tuple(sorted((card for card in cards if not self._hidden(card)), key=lambda card: card.index))
        await self._sort(pairs)

    async def set_owned(self, owned: frozenset[str]) -> None:
        """Takes the cards whose MIG instances belong to the plugin itself, now or until their last pod ends."""
        if owned != self._owned:
            self._owned = owned
            await self._sort(self.state.pairs)

    async def _sort(self, pairs: tuple[PairFacts, ...]) -> None:
        shown = self._cards
        offers = sort_cards(shown, self._settings, self._owned)
        if self._settings.mode == MODE_MIG:
            # Instances come and go with pods; nobody has to be told.
            shown = tuple(msgspec.structs.replace(card, mig_instances=()) for card in shown)
        state = msgspec.structs.replace(
            self.state,
            cards=offers.shared,
            replicas=self._replicas(offers),
            pairs=pairs,
            static=offers.static,
            left_out=offers.left_out,
            strategy_problem=offers.problem,
            everything=shown,
        )
        await self._set(state)

    async def set_blocked(self, card: str, placements: tuple[MigPlacement, ...]) -> None:
        """Takes the places of a card in mode mig that cannot be given to pods now."""
        others = {uuid: places for uuid, places in self.state.blocked.items() if uuid != card}
        blocked = {**others, card: placements} if placements else others
        await self._set(msgspec.structs.replace(self.state, blocked=blocked))

    async def set_unhealthy(self, unhealthy: Mapping[str, str]) -> None:
        """Takes the complete set of cards out of service."""
        await self._set(msgspec.structs.replace(self.state, unhealthy=dict(unhealthy)))

    async def changed_since(self, version: int) -> int:
        """Waits until the state is newer than `version`; returns its version."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version)
            return self.version

    async def _set(self, state: BoardState) -> None:
        async with self._changed:
            if state != self.state:
                self.state = state
                self.version += 1
                self._changed.notify_all()

    def _replicas(self, offers: Offers) -> int:
        """In mode mig at least one for each instance that fits on a card (trap T-33)."""
        asked = self._settings.nvidia.device_split_count
        if self._settings.mode == MODE_MIG:
            asked = max([asked, *(allowed_on(card, self._settings).instances for card in offers.shared)])
        return capped_replicas(asked, len(offers.shared))

    def _hidden(self, card: CardFacts) -> bool:
        return card.uuid in self._settings.hidden_uuids or card.index in self._settings.hidden_indexes


def capped_replicas(asked: int, cards: int) -> int:
    """Replicas per card so that the whole list fits into one message of kubelet."""
    if cards == 0:
        return asked
    id_bytes = len("GPU-") + 36
    return max(1, min(asked, _KUBELET_MESSAGE_BYTES // (cards * (id_bytes + _BYTES_PER_REPLICA))))
