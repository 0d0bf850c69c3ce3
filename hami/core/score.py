"""Node and card scores in float32, operation by operation as upstream computes them (spec/scheduler 4.4, 4.5).

The request is not part of the node score. In the card score it counts only for cards whose registered type is exactly
the vendor's word: upstream compares the two, and cards registered by its plugin have model names.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from hami.core.model import Device, DeviceRequest, Use, Weights

_FACTOR: Final = 10.0
_FLOAT32: Final = struct.Struct("<f")


def float32(number: float) -> float:
    """The nearest float32. Rounding each double result of +, -, * and / this way equals float32 arithmetic."""
    rounded: float = _FLOAT32.unpack(_FLOAT32.pack(number))[0]
    return rounded


def node_score(devices: Sequence[Device], uses: Sequence[Use]) -> float:
    """How full a node is, 0 to 30, over all its cards; 0 if slots, cores or memory sum to nothing."""
    return _score(
        sum(use.slots for use in uses),
        sum(device.slots for device in devices),
        sum(use.core_percent for use in uses),
        sum(device.core_percent for device in devices),
        sum(use.memory_mib for use in uses),
        sum(device.memory_mib for device in devices),
        Weights(),
    )


def device_score(device: Device, use: Use, weights: Weights, request: DeviceRequest) -> float:
    """How full a card is, by weighted slots, cores and memory; 0 if it has none of one of them."""
    if device.type == request.vendor:
        percent = request.memory_percent
        memory_mib = device.memory_mib * percent // 100 if percent else request.memory_mib
        use = use.plus(Use(1, memory_mib, request.core_percent))
    return _score(
        use.slots,
        device.slots,
        use.core_percent,
        device.core_percent,
        use.memory_mib,
        device.memory_mib,
        weights,
    )


@lru_cache(maxsize=16384)
def _score(
    slots: int, all_slots: int, cores: int, all_cores: int, memory: int, all_memory: int, weights: Weights
) -> float:
    if not (all_slots and all_cores and all_memory):
        return 0.0
    slot_part = float32(weights.slot * _ratio(slots, all_slots))
    core_part = float32(weights.core * _ratio(cores, all_cores))
    memory_part = float32(weights.memory * _ratio(memory, all_memory))
    return float32(_FACTOR * float32(float32(slot_part + core_part) + memory_part))


def _ratio(part: int, whole: int) -> float:
    return float32(float32(part) / float32(whole))
