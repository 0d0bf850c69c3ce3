"""All cards of all nodes as numpy columns, to pick candidates without touching objects (design 6).

They may only reject what the evaluator rejects; the evaluator decides. The score vector holds `core.score.node_score`
of each node, unchanged.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hami.core.model import ContainerKind, Device, DeviceRequest, NodeState, PodRequest, Use
from hami.core.score import node_score
from hami.placement.vendor_columns import BoolArray, CardRow, VendorColumns

_FIRST_NODES: Final = 64


class Columns:
    """The fast view of every node that can take shares."""

    def __init__(self) -> None:
        self._place_of: dict[str, int] = {}
        self._names: list[str] = []
        self._free_places: list[int] = []
        self._vendors: dict[str, VendorColumns] = {}
        self._capacity = 0
        self._ranks: NDArray[np.int64] | None = None
        self._states: dict[int, NodeState] = {}
        self.version = 0
        """Grows whenever a place gets or loses its node: masks from before mean nothing then."""
        self._present: BoolArray = np.zeros(0, np.bool_)
        self.scores: NDArray[np.float32] = np.zeros(0, np.float32)

    def __len__(self) -> int:
        return len(self._place_of)

    @property
    def has_mig(self) -> bool:
        """Whether some node that takes shares has a MIG card."""
        return any(columns.has_mig_nodes for columns in self._vendors.values())

    def place(self, name: str) -> int | None:
        return self._place_of.get(name)

    def name(self, place: int) -> str:
        return self._names[place]

    def update(self, state: NodeState) -> None:
        """Takes the node as it is now."""
        place = self._place_of.get(state.name)
        if place is None:
            place = self._new_place(state.name)
        self.scores[place] = node_score(state.devices, state.uses)
        known = self._states.get(place)
        self._states[place] = state
        if known is not None and known.devices is state.devices and known.cordoned == state.cordoned:
            self._update_uses(place, known, state)
        else:
            self._update_cards(place, state)

    def _update_uses(self, place: int, before: NodeState, state: NodeState) -> None:
        """Only what pods hold on a few cards has changed."""
        positions: dict[str, int] = {}
        for device, old, use in zip(state.devices, before.uses, state.uses, strict=True):
            position = positions.get(device.vendor, 0)
            positions[device.vendor] = position + 1
            if old is not use:
                self._vendors[device.vendor].set(place, position, _row(state, device, use))

    def _update_cards(self, place: int, state: NodeState) -> None:
        rows: dict[str, list[CardRow]] = {word: [] for word in self._vendors}
        mig: set[str] = set()
        for device, use in zip(state.devices, state.uses, strict=True):
            if device.mode == "mig":
                mig.add(device.vendor)
            rows.setdefault(device.vendor, []).append(_row(state, device, use))
        for word, cards in rows.items():
            self._columns(word, len(cards)).fill(place, cards, has_mig=word in mig)

    def remove(self, name: str) -> None:
        """The node is gone or takes no shares."""
        place = self._place_of.pop(name, None)
        if place is None:
            return
        self._ranks = None
        self.version += 1
        self._states.pop(place, None)
        self._present[place] = False
        self._names[place] = ""
        self._free_places.append(place)
        for columns in self._vendors.values():
            columns.fill(place, [], has_mig=False)

    def candidates(self, request: PodRequest) -> BoolArray:
        """Mask over places: nodes that the evaluator may accept. Every other node it would reject."""
        mask = self._present.copy()
        side_by_side: dict[str, list[DeviceRequest]] = {}
        for asked in {asked for container in request.containers for asked in container.devices}:
            columns = self._vendors.get(asked.vendor)
            if columns is None:
                return np.zeros(self._capacity, np.bool_)
            mask &= columns.fits(asked, mutex="mutex" in request.policies.device)
        for container in request.containers:
            if container.kind is not ContainerKind.INIT:
                for asked in container.devices:
                    side_by_side.setdefault(asked.vendor, []).append(asked)
        for word, requests in side_by_side.items():
            if len(requests) > 1:
                mask &= self._vendors[word].fits_together(requests)
        return mask

    def best(self, mask: BoolArray, *, spread: bool) -> int | None:
        """The candidate that comes first: by score, ties by node name; None if there is none."""
        places = np.flatnonzero(mask)
        if not len(places):
            return None
        scores = self.scores[places]
        ties = places[scores == (scores.min() if spread else scores.max())]
        return int(ties[0] if len(ties) == 1 else ties[self.ranks[ties].argmin()])

    def ranked(self, mask: BoolArray, *, spread: bool) -> list[int]:
        """All candidates in order."""
        places = np.flatnonzero(mask)
        scores = self.scores[places]
        order = np.lexsort((self.ranks[places], scores if spread else -scores))
        return [int(place) for place in places[order]]

    def mask_of(self, names: list[str]) -> BoolArray:
        """Mask of the places of these nodes; unknown names are left out."""
        mask = np.zeros(self._capacity + 1, np.bool_)
        mask[np.fromiter(map(self._place_of.get, names, repeat(-1)), np.int64, len(names))] = True
        return mask[:-1]

    @property
    def ranks(self) -> NDArray[np.int64]:
        """Position of each place's name in the sorted list of names."""
        if self._ranks is None:
            self._ranks = np.zeros(self._capacity, np.int64)
            for rank, name in enumerate(sorted(self._place_of)):
                self._ranks[self._place_of[name]] = rank
        return self._ranks

    def _columns(self, word: str, cards: int) -> VendorColumns:
        columns = self._vendors.get(word)
        if columns is None:
            columns = self._vendors[word] = VendorColumns(self._capacity)
        if columns.cards < cards:
            columns.grow(cards, self._capacity)
        return columns

    def _new_place(self, name: str) -> int:
        self._ranks = None
        self.version += 1
        if self._free_places:
            place = self._free_places.pop()
            self._names[place] = name
        else:
            place = len(self._names)
            self._names.append(name)
            if place >= self._capacity:
                self._grow(_FIRST_NODES + self._capacity * 5 // 4)
        self._place_of[name] = place
        self._present[place] = True
        return place

    def _grow(self, nodes: int) -> None:
        self._capacity = nodes
        scores = np.zeros(nodes, np.float32)
        scores[: len(self.scores)] = self.scores
        self.scores = scores
        self._present = np.concatenate((self._present, np.zeros(nodes - len(self._present), np.bool_)))
        for columns in self._vendors.values():
            columns.grow(0, nodes)


def _row(state: NodeState, device: Device, use: Use) -> CardRow:
    return CardRow.of(device, use, in_use=device.healthy and device.id not in state.cordoned)
