"""The cards of one vendor on all nodes as numpy arrays of shape (G, N): G card positions, N node places.

Every check is one the evaluator makes on each card, so a node that is refused here would be refused there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hami.core.model import INT32_MAX, Device, DeviceRequest, Use

BoolArray = NDArray[np.bool_]
_Numbers = NDArray[np.int32]
_Cell = TypeVar("_Cell", bound=np.generic)

_FULL: Final = 100
"""Percent: a whole card's cores, all of its memory."""
_MOST_COUNTED: Final = 255
"""Cards of a node that a sum in bytes can count."""
_NUMBERS: Final = ("total_memory", "free_memory", "free_slots", "used_slots", "free_cores", "total_cores", "capacity")
_FLAGS: Final = ("usable", "has_slot", "takes_no_cores")


class CardRow(NamedTuple):
    """What one card has, in the order of `_NUMBERS`. `capacity`: shares of one request that it may take, 0 for a card
    out of use."""

    total_memory: int
    free_memory: int
    free_slots: int
    used_slots: int
    free_cores: int
    total_cores: int
    capacity: int

    @classmethod
    def of(cls, device: Device, use: Use, *, in_use: bool) -> CardRow:
        """Amounts beyond int32 (many broken allocations on one card) are cut: requests are smaller, so every
        comparison stays what it was."""
        free_slots = _cut(device.slots - use.slots)
        capacity = max(free_slots, 0) if device.mode == "mig" else 1
        return cls(
            device.memory_mib,
            _cut(device.memory_mib - use.memory_mib),
            free_slots,
            _cut(use.slots),
            _cut(device.core_percent - use.core_percent),
            device.core_percent,
            capacity if in_use else 0,
        )

    @property
    def flags(self) -> tuple[bool, bool, bool]:
        """In the order of `_FLAGS`: usable, with a free slot, and then able to serve a request without cores."""
        usable = self.capacity > 0
        has_slot = usable and self.free_slots > 0
        return usable, has_slot, has_slot and (self.free_cores > 0 or self.free_cores == self.total_cores == 0)


_NO_CARD: Final = CardRow(*(0 for _ in _NUMBERS))


class VendorColumns:
    """Arrays of one vendor, kept by node place."""

    def __init__(self, nodes: int) -> None:
        self._numbers: _Numbers = np.zeros((len(_NUMBERS), 0, nodes), np.int32)
        self._flags: BoolArray = np.zeros((len(_FLAGS), 0, nodes), np.bool_)
        self._has_mig: BoolArray = np.zeros(nodes, np.bool_)
        self._mig_nodes = 0
        self._name_rows()

    def grow(self, cards: int, nodes: int) -> None:
        """Makes room for so many cards a node and so many nodes; never less than before."""
        cards = max(cards, self.cards)
        self._numbers = _grown(self._numbers, (len(_NUMBERS), cards, nodes))
        self._flags = _grown(self._flags, (len(_FLAGS), cards, nodes))
        self._has_mig = _grown(self._has_mig, (nodes,))
        self._name_rows()

    def _name_rows(self) -> None:
        """Views of the blocks, one a field."""
        numbers, flags = self._numbers, self._flags
        self._total_memory: _Numbers = numbers[0]
        self._free_memory: _Numbers = numbers[1]
        self._free_slots: _Numbers = numbers[2]
        self._used_slots: _Numbers = numbers[3]
        self._free_cores: _Numbers = numbers[4]
        self._total_cores: _Numbers = numbers[5]
        self._capacity: _Numbers = numbers[6]
        self._usable: BoolArray = flags[0]
        self._has_slot: BoolArray = flags[1]
        self._takes_no_cores: BoolArray = flags[2]

    @property
    def cards(self) -> int:
        """Card positions that there is room for."""
        return int(self._numbers.shape[1])

    def fill(self, place: int, rows: Sequence[CardRow], *, has_mig: bool) -> None:
        """One row a card; positions beyond them are empty."""
        self._mig_nodes += int(has_mig) - int(self._has_mig[place])
        self._has_mig[place] = has_mig
        whole = [*rows, *(_NO_CARD for _ in range(self.cards - len(rows)))]
        if whole:
            self._numbers[:, :, place] = list(zip(*whole, strict=True))
            self._flags[:, :, place] = list(zip(*(row.flags for row in whole), strict=True))

    def set(self, place: int, position: int, row: CardRow) -> None:
        """One card of a node that was filled before."""
        self._numbers[:, position, place] = row
        self._flags[:, position, place] = row.flags

    @property
    def has_mig_nodes(self) -> bool:
        return self._mig_nodes > 0

    def fits(self, request: DeviceRequest, *, mutex: bool) -> BoolArray:
        """Nodes that may serve this request alone: enough cards pass the checks that every card has to pass."""
        cores = min(request.core_percent, _FULL)
        passes: BoolArray = self._free_memory >= self._memory_need(request)
        if cores:
            passes &= self._has_slot
            passes &= self._free_cores >= cores
        else:
            passes &= self._takes_no_cores
        if cores == _FULL:
            passes &= (self._total_cores != _FULL) | (self._used_slots == 0)
        if mutex:
            passes &= self._used_slots == 0
        if request.count == 1:
            return _any(passes)
        if not self._mig_nodes and self.cards <= _MOST_COUNTED:
            cards: NDArray[np.uint8] = np.add.reduce(passes.view(np.uint8), axis=0, dtype=np.uint8)
            return cards >= request.count
        shares: NDArray[np.int64] = np.where(passes, self._capacity, 0).sum(axis=0, dtype=np.int64)
        return shares >= request.count

    def _memory_need(self, request: DeviceRequest) -> NDArray[np.integer] | int:
        if request.memory_mib:
            return request.memory_mib
        if request.memory_percent == _FULL:
            return self._total_memory
        return self._total_memory.astype(np.int64) * request.memory_percent // 100

    def fits_together(self, requests: Sequence[DeviceRequest]) -> BoolArray:
        """Nodes whose sums hold what containers that run side by side ask in all."""
        memory = sum(request.count * request.memory_mib for request in requests)
        cores = sum(request.count * min(request.core_percent, _FULL) for request in requests)
        slots = sum(request.count for request in requests)
        fits: BoolArray = self._sum(self._free_slots) >= slots
        fits &= self._sum(self._free_memory) >= memory
        # A MIG slice charges the share of its profile, not the cores that were asked.
        fits &= (self._sum(self._free_cores) >= cores) | self._has_mig
        return fits

    def _sum(self, free: _Numbers) -> NDArray[np.int64]:
        total: NDArray[np.int64] = (np.maximum(free, 0) * self._usable).sum(axis=0, dtype=np.int64)
        return total


def _cut(amount: int) -> int:
    return amount if -INT32_MAX <= amount <= INT32_MAX else INT32_MAX if amount > 0 else -INT32_MAX


def _any(passes: BoolArray) -> BoolArray:
    found: BoolArray = np.logical_or.reduce(passes, axis=0)
    return found


def _grown(old: NDArray[_Cell], shape: tuple[int, ...]) -> NDArray[_Cell]:
    fresh = np.zeros(shape, old.dtype)
    fresh[tuple(slice(length) for length in old.shape)] = old
    return fresh
