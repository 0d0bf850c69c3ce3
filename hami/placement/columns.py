"""All cards of all nodes as numpy columns, to pick candidates without touching objects (design 6).

For each vendor arrays of shape (G, N): G card positions, N node places. They may only reject what the evaluator
rejects; the evaluator decides. The score vector holds `core.score.node_score` of each node, unchanged.
"""

from __future__ import annotations

from itertools import repeat
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hami.core.model import ContainerKind, DeviceRequest, NodeState, PodRequest
from hami.core.score import node_score

BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]

_FIRST_NODES: Final = 64
_FIELDS: Final = ("total_memory", "free_memory", "free_slots", "used_slots", "free_cores", "total_cores", "capacity")
_FULL: Final = 100
"""Percent: a whole card's cores, all of its memory."""


class _VendorColumns:
    """Cards of one vendor. `capacity`: shares of one request that the card may take, 0 for a card out of use."""

    def __init__(self, nodes: int) -> None:
        self.arrays: dict[str, IntArray] = {field: np.zeros((0, nodes), np.int64) for field in _FIELDS}
        self.usable: BoolArray = np.zeros((0, nodes), np.bool_)
        self.has_mig: BoolArray = np.zeros(nodes, np.bool_)
        self._mig_nodes = 0

    def grow(self, cards: int, nodes: int) -> None:
        for field, old in self.arrays.items():
            fresh = np.zeros((cards, nodes), np.int64)
            fresh[: old.shape[0], : old.shape[1]] = old
            self.arrays[field] = fresh
        self.usable = self.arrays["capacity"] > 0
        if nodes != len(self.has_mig):
            self.has_mig = np.concatenate((self.has_mig, np.zeros(nodes - len(self.has_mig), np.bool_)))

    def fill(self, place: int, rows: list[tuple[int, ...]], *, has_mig: bool) -> None:
        """`rows`: one tuple per card in the order of `_FIELDS`."""
        self._mig_nodes += int(has_mig) - int(self.has_mig[place])
        self.has_mig[place] = has_mig
        for position, field in enumerate(_FIELDS):
            column = self.arrays[field][:, place]
            column[: len(rows)] = [row[position] for row in rows]
            column[len(rows) :] = 0
        self.usable[:, place] = self.arrays["capacity"][:, place] > 0

    @property
    def has_mig_nodes(self) -> bool:
        return self._mig_nodes > 0

    def fits(self, request: DeviceRequest, *, mutex: bool) -> BoolArray:
        """Nodes that may serve this request alone: enough cards pass the checks that every card has to pass."""
        arrays = self.arrays
        cores = min(request.core_percent, _FULL)
        passes = self.usable & (arrays["free_slots"] > 0) & (arrays["free_memory"] >= self._memory_need(request))
        passes &= arrays["free_cores"] >= cores
        if cores == _FULL:
            passes &= (arrays["total_cores"] != _FULL) | (arrays["used_slots"] == 0)
        if mutex:
            passes &= arrays["used_slots"] == 0
        if cores == 0:
            passes &= (arrays["total_cores"] == 0) | (arrays["free_cores"] != 0)
        if request.count == 1:
            return self._any(passes)
        if not self._mig_nodes:
            cards: IntArray = np.add.reduce(passes, axis=0, dtype=np.int64)
            return cards >= request.count
        shares: IntArray = np.where(passes, arrays["capacity"], 0).sum(axis=0)
        return shares >= request.count

    def _memory_need(self, request: DeviceRequest) -> IntArray | int:
        if request.memory_mib:
            return request.memory_mib
        total = self.arrays["total_memory"]
        return total if request.memory_percent == _FULL else total * request.memory_percent // 100

    @staticmethod
    def _any(passes: BoolArray) -> BoolArray:
        found: BoolArray = np.logical_or.reduce(passes, axis=0)
        return found

    def fits_together(self, requests: list[DeviceRequest]) -> BoolArray:
        """Nodes whose sums hold what containers that run side by side ask in all."""
        memory = sum(request.count * request.memory_mib for request in requests)
        cores = sum(request.count * min(request.core_percent, _FULL) for request in requests)
        slots = sum(request.count for request in requests)
        fits: BoolArray = self._free("free_slots") >= slots
        fits &= self._free("free_memory") >= memory
        # A MIG slice charges the share of its profile, not the cores that were asked.
        fits &= (self._free("free_cores") >= cores) | self.has_mig
        return fits

    def _free(self, field: str) -> IntArray:
        total: IntArray = (np.maximum(self.arrays[field], 0) * self.usable).sum(axis=0)
        return total


class Columns:
    """The fast view of every node that can take shares."""

    def __init__(self) -> None:
        self._place_of: dict[str, int] = {}
        self._names: list[str] = []
        self._free_places: list[int] = []
        self._vendors: dict[str, _VendorColumns] = {}
        self._capacity = 0
        self._ranks: NDArray[np.int64] | None = None
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
        rows: dict[str, list[tuple[int, ...]]] = {word: [] for word in self._vendors}
        mig: set[str] = set()
        for device, use in zip(state.devices, state.uses, strict=True):
            is_mig = device.mode == "mig"
            if is_mig:
                mig.add(device.vendor)
            free_slots = device.slots - use.slots
            capacity = max(free_slots, 0) if is_mig else 1
            rows.setdefault(device.vendor, []).append(
                (
                    device.memory_mib,
                    device.memory_mib - use.memory_mib,
                    free_slots,
                    use.slots,
                    device.core_percent - use.core_percent,
                    device.core_percent,
                    capacity if device.healthy and device.id not in state.cordoned else 0,
                )
            )
        for word, cards in rows.items():
            columns = self._columns(word, len(cards))
            columns.fill(place, cards, has_mig=word in mig)

    def remove(self, name: str) -> None:
        """The node is gone or takes no shares."""
        place = self._place_of.pop(name, None)
        if place is None:
            return
        self._ranks = None
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

    def _columns(self, word: str, cards: int) -> _VendorColumns:
        columns = self._vendors.get(word)
        if columns is None:
            columns = self._vendors[word] = _VendorColumns(self._capacity)
        if columns.arrays["capacity"].shape[0] < cards:
            columns.grow(cards, self._capacity)
        return columns

    def _new_place(self, name: str) -> int:
        self._ranks = None
        if self._free_places:
            place = self._free_places.pop()
            self._names[place] = name
        else:
            place = len(self._names)
            self._names.append(name)
            if place >= self._capacity:
                self._grow(max(_FIRST_NODES, 2 * self._capacity))
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
            columns.grow(columns.arrays["capacity"].shape[0], nodes)
