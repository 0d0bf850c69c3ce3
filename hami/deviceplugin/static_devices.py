"""A resource of MIG devices that an administrator made: NVIDIA's plain path, without pods and annotations.

Kubelet's ids are the devices themselves, so that whoever kubelet gave them to gets them (design 3, spec/node 2.8).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import structlog

from hami.core.container_edits import ContainerEdits
from hami.core.errors import AllocateError
from hami.deviceplugin.board import Board, BoardState
from hami.deviceplugin.mig_setup import MigDevice, MigSetup
from hami.deviceplugin.replicas import HEALTHY, UNHEALTHY
from hami.deviceplugin.settings import PluginSettings
from hami.proto import deviceplugin_v1beta1_pb2 as pb

_BY_INDEX: Final = "index"

log = structlog.get_logger(__name__)


class StaticDevices:
    """Implements `servicer.Served` for one resource."""

    preferred = True

    def __init__(self, settings: PluginSettings, board: Board, setup: MigSetup, resource: str) -> None:
        self._settings = settings
        self._board = board
        self._setup = setup
        self._resource = resource

    def devices(self, state: BoardState) -> pb.ListAndWatchResponse:
        """Each device with its card's health and, where the driver tells it, NUMA node."""
        listed = []
        for device in state.static.get(self._resource, ()):
            card = device.card
            topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=card.numa)]) if card.numa >= 0 else None
            health = HEALTHY if state.healthy(card.uuid) else UNHEALTHY
            listed.append(pb.Device(ID=device.compute.uuid, health=health, topology=topology))
        return pb.ListAndWatchResponse(devices=listed)

    async def choose(self, requests: Sequence[Any]) -> list[list[str]]:
        """Spreads over the cards: each next device from the card of which most are free."""
        cards = {device.compute.uuid: device.card.uuid for device in self._offered()}
        return [
            spread(each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size, cards)
            for each in requests
        ]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Raises AllocateError for an id that is not there any more, and where CDI files cannot be written."""
        state = self._board.state
        by_id = {device.compute.uuid: device for device in self._offered()}
        answers = []
        for ids in requests:
            unknown = [each for each in ids if each not in by_id]
            if unknown:
                raise AllocateError(f"{self._resource}: {', '.join(unknown)} is not on this node (any more)")
            devices = [by_id[each] for each in dict.fromkeys(ids)]
            names = [each.position for each in devices] if self._settings.device_id_strategy == _BY_INDEX else []
            try:
                answers.append(await asyncio.to_thread(self._setup.edits, devices, state.everything, names))
            except OSError as error:
                raise AllocateError(f"files on the node: {error}") from error
            log.info("allocated", resource=self._resource, devices=list(ids))
        return answers

    def _offered(self) -> tuple[MigDevice, ...]:
        return self._board.state.static.get(self._resource, ())


def spread(available: Sequence[str], must_include: Sequence[str], size: int, cards: dict[str, str]) -> list[str]:
    """`size` ids, the must-includes among them; fewer are none, and kubelet chooses. `cards` has each id's card.

    Of cards with as many free the one comes first that was taken from least (spec/node 10.2).
    """
    chosen = [each for each in must_include if each in available]
    free = [each for each in available if each not in chosen]
    if len(chosen) > size or len(chosen) + len(free) < size:
        return []
    while len(chosen) < size:
        left = Counter(cards.get(each, "") for each in free)
        taken = Counter(cards.get(each, "") for each in chosen)
        best = max(free, key=partial(_room, cards, left, taken))
        free.remove(best)
        chosen.append(best)
    return chosen


def _room(cards: dict[str, str], left: Counter[str], taken: Counter[str], device: str) -> tuple[int, int]:
    card = cards.get(device, "")
    return left[card], -taken[card]
