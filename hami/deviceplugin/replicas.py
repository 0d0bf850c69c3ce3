"""Device ids as kubelet sees them: `<uuid>-<n>`, n below the split count (spec/node 2.4, 2.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hami.deviceplugin.board import BoardState
from hami.proto import deviceplugin_v1beta1_pb2 as pb

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

_DASHES_OF_A_REPLICA: Final = 6
_TIME_SLICING: Final = "::"


def replica_id(uuid: str, number: int) -> str:
    """Kubelet's id of one share of a card (spec/node 2.4)."""
    return f"{uuid}-{number}"


def card_of(device_id: str) -> str:
    """The card of a kubelet id: without `::n`, without `-n` after a full UUID, else the id itself."""
    uuid, separator, _ = device_id.partition(_TIME_SLICING)
    if separator:
        return uuid
    head, _, tail = device_id.rpartition("-")
    return head if device_id.count("-") == _DASHES_OF_A_REPLICA and tail.isdigit() else device_id


def device_list(state: BoardState, *, numa: bool) -> pb.ListAndWatchResponse:
    """All replicas of all cards, in order of index and number, with the card's health and, if asked, NUMA node."""
    devices = []
    for card in state.cards:
        health = HEALTHY if state.healthy(card.uuid) else UNHEALTHY
        topology = pb.TopologyInfo(nodes=[pb.NUMANode(ID=card.numa)]) if numa and card.numa >= 0 else None
        devices += [
            pb.Device(ID=replica_id(card.uuid, number), health=health, topology=topology)
            for number in range(state.replicas)
        ]
    return pb.ListAndWatchResponse(devices=devices)


def preferred_ids(
    cards: Sequence[str], available: Sequence[str], must_include: Sequence[str], size: int
) -> list[str] | None:
    """Ids that stand for `cards` in order; None if a card has none left, or if there are not `size` cards.

    Kubelet insists on `must_include` (what the pod's init containers had): those stand for their cards where they
    match, and take the place of the last cards where they do not.
    """
    if len(cards) != size or len(must_include) > size:
        return None
    insisted = list(must_include)
    free = [device_id for device_id in available if device_id not in insisted]
    matched = [_take(insisted, card) for card in cards]
    places = size - len(must_include)
    chosen: list[str] = []
    for card, found in zip(cards, matched, strict=True):
        if found is None and places > 0:
            found = _take(free, card)
            if found is None:
                return None
            places -= 1
        if found is not None:
            chosen.append(found)
    return chosen + insisted


def _take(ids: list[str], card: str) -> str | None:
    found = next((device_id for device_id in ids if card_of(device_id) == card), None)
    if found is not None:
        ids.remove(found)
    return found
