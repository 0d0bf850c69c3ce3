"""Scores (4.4, 4.5) and the order in which cards and nodes are tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.reference.allocations import DEVICE_WORD
from tests.reference.model import Card, Config, Object, Request, f32
from tests.reference.objects import notes_of, parse_bool, words
from tests.reference.requests import UNSET_PERCENTAGE

NODE_POLICY = "hami.io/node-scheduler-policy"
GPU_POLICY = "hami.io/gpu-scheduler-policy"
WEIGHTS = "hami.io/device-scoring-weights"
NUMA_BIND = "nvidia.com/numa-bind"

Key = Callable[[Card, dict[str, float]], Any]
"""Sort key of a card, given the score of each card."""


class WeightsError(ValueError):
    """The weights annotation cannot be used."""


def node_score(cards: list[Card]) -> float:
    """10 * (slots + cores + memory), each used / total over all cards; 0 where a total is 0."""
    slots, cores, mem = (sum(getattr(c, name) for c in cards) for name in ("count", "total_cores", "total_mem"))
    if 0 in (slots, cores, mem):
        return 0.0
    used = f32(f32(sum(c.used for c in cards)) / f32(slots))
    used_cores = f32(f32(sum(c.used_cores for c in cards)) / f32(cores))
    used_mem = f32(f32(sum(c.used_mem for c in cards)) / f32(mem))
    return f32(10 * f32(f32(used + used_cores) + used_mem))


def card_score(card: Card, request: Request, weights: tuple[int, int, int]) -> float:
    """Score of one card. The request counts only where the card's type is exactly the request's type word."""
    if 0 in (card.count, card.total_cores, card.total_mem):
        return 0.0
    slots = cores = mem = 0
    if card.type == DEVICE_WORD:
        by_share = request.percentage not in (0, UNSET_PERCENTAGE)
        mem = card.total_mem * request.percentage // 100 if by_share else request.mem
        slots, cores = 1, request.cores
    parts = [
        f32(weight * f32(f32(amount) / f32(total)))
        for weight, amount, total in (
            (weights[0], slots + card.used, card.count),
            (weights[1], cores + card.used_cores, card.total_cores),
            (weights[2], mem + card.used_mem, card.total_mem),
        )
    ]
    return f32(10 * f32(f32(parts[0] + parts[1]) + parts[2]))


def scoring_weights(pod: Object) -> tuple[int, int, int]:
    """`slot=1,core=1,memory=3`; without the annotation all 1.

    Raises:
        WeightsError: not all three keys exactly once, a number that is none or negative, or all zero.
    """
    text = notes_of(pod).get(WEIGHTS)
    if text is None:
        return (1, 1, 1)
    found: dict[str, int] = {}
    for item in text.split(","):
        key, _, number = (part.strip() for part in item.partition("="))
        if key in found or key not in ("slot", "core", "memory") or not number.isdecimal():
            raise WeightsError(WEIGHTS)
        found[key] = int(number)
    if len(found) != 3 or not any(found.values()):
        raise WeightsError(WEIGHTS)
    return (found["slot"], found["core"], found["memory"])


def gpu_policies(pod: Object, config: Config) -> list[str]:
    return words(notes_of(pod).get(GPU_POLICY) or config.gpu_policy)


def is_numa_bound(pod: Object) -> bool:
    return parse_bool(notes_of(pod).get(NUMA_BIND, ""))


def node_is_spread(pod: Object, config: Config) -> bool:
    return (notes_of(pod).get(NODE_POLICY) or config.node_policy) == "spread"


def walk_order(cards: list[Card], scores: dict[str, float], policies: list[str], numa_bind: bool) -> list[Card]:
    """The cards in the order in which Fit tries them: sorted as in 4.5, then walked from the end."""
    keys = _chain_keys(policies, numa_bind) if _is_chain(policies) else _single_keys(policies, numa_bind)
    ordered = sorted(cards, key=lambda card: tuple(key(card, scores) for key in keys))
    return ordered[::-1]


def _is_chain(policies: list[str]) -> bool:
    return len(policies) > 1 or policies == ["numa"]


def _score_up(card: Card, scores: dict[str, float]) -> float:
    return scores[card.uuid]


def _score_down(card: Card, scores: dict[str, float]) -> float:
    return -scores[card.uuid]


def _numa_up(card: Card, _: dict[str, float]) -> int:
    return card.numa


def _numa_down(card: Card, _: dict[str, float]) -> int:
    return -card.numa


def _used_down(card: Card, _: dict[str, float]) -> int:
    return -card.used


def _index_down(card: Card, _: dict[str, float]) -> tuple[int, int]:
    """Sorted downwards so that the walk from the end meets the lowest index first."""
    return (-card.index, -card.position)


def _chain_keys(policies: list[str], numa_bind: bool) -> list[Key]:
    known: dict[str, Key] = {"binpack": _score_up, "spread": _score_down, "numa": _numa_up}
    keys = [known[word] for word in policies if word in known] or [_score_down]
    return ([_numa_up] if numa_bind else []) + keys + [_index_down]


def _single_keys(policies: list[str], numa_bind: bool) -> list[Key]:
    word = policies[0] if policies else "spread"
    if word == "binpack":
        return [_numa_down, _score_up, _index_down] if numa_bind else [_score_up, _numa_up, _index_down]
    primary = _used_down if word == "mutex" else _score_down
    return [_numa_up, primary, _index_down] if numa_bind else [primary, _numa_up, _index_down]
