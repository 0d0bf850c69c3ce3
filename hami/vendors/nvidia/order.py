"""In which order cards are tried (spec/scheduler 4.5).

Upstream sorts and walks from the end, and leaves some ties to an unstable sort. Here every remaining tie goes to the
lower device index, then to the earlier registration (design 4, promise 5).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from hami.core.model import DeviceRequest, NodeState, Policies
from hami.core.policy_words import BINPACK, MUTEX, NUMA, SPREAD
from hami.core.score import device_score


class _Key(enum.IntEnum):
    """What is compared, in words of the card tried first: a position in the tuple that `_sort_key` makes."""

    FULLEST = 0
    EMPTIEST = 1
    HIGHEST_NUMA = 2
    LOWEST_NUMA = 3
    FEWEST_TASKS = 4


_CHAIN_KEYS: Final = {BINPACK: _Key.FULLEST, SPREAD: _Key.EMPTIEST, NUMA: _Key.HIGHEST_NUMA}


def tried_order(
    state: NodeState, positions: Iterable[int], request: DeviceRequest, policies: Policies, *, numa_bind: bool
) -> list[int]:
    """`positions` of cards in `state.devices`, first tried first. With `numa_bind` cards of one NUMA node adjoin."""
    keys = _keys(policies.device, numa_bind)
    return sorted(positions, key=lambda position: _sort_key(state, position, request, policies, keys))


@lru_cache(maxsize=256)
def _keys(words: tuple[str, ...], numa_bind: bool) -> tuple[int, ...]:
    if len(words) != 1 or words[0] == NUMA:
        return _chain_keys(words, numa_bind=numa_bind)
    word = words[0]
    if word == MUTEX:
        numa_first = (_Key.HIGHEST_NUMA,) if numa_bind else ()
        return (*numa_first, _Key.FEWEST_TASKS, _Key.HIGHEST_NUMA)
    if word == BINPACK:
        return (_Key.LOWEST_NUMA, _Key.FULLEST) if numa_bind else (_Key.FULLEST, _Key.HIGHEST_NUMA)
    return (_Key.HIGHEST_NUMA, _Key.EMPTIEST) if numa_bind else (_Key.EMPTIEST, _Key.HIGHEST_NUMA)


def _chain_keys(words: tuple[str, ...], *, numa_bind: bool) -> tuple[int, ...]:
    keys = tuple(_CHAIN_KEYS[word] for word in words if word in _CHAIN_KEYS) or (_Key.EMPTIEST,)
    return (_Key.HIGHEST_NUMA, *keys) if numa_bind else keys


def _sort_key(
    state: NodeState, position: int, request: DeviceRequest, policies: Policies, keys: tuple[int, ...]
) -> tuple[float, ...]:
    device, use = state.devices[position], state.uses[position]
    score, numa = device_score(device, use, policies.weights, request), device.numa
    values = (-score, score, -numa, numa, use.slots)
    return (*[values[key] for key in keys], device.index, position)
