"""Cards that are linked best (policy `topology-aware`, spec/scheduler 4.6).

Exact while few combinations exist (every case of up to 8 cards); beyond that greedy growth from each card, improved by
swaps. Both are deterministic: of equal totals the one found first in the order of the candidates wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import comb
from typing import Final

PairScores = Mapping[str, Mapping[str, int]]

_EXACT_PAIR_LIMIT: Final = 4000
"""Pairs that the exact search may add up; 8 choose 4 needs 420, 16 choose 3 needs 1680."""


def loneliest(cards: Sequence[str], scores: PairScores) -> int:
    """Position of the card with the lowest sum of scores to the other candidates, so that linked cards stay free."""
    totals = [sum(_score(scores, card, other) for other in cards if other != card) for card in cards]
    return totals.index(min(totals))


def best_linked(cards: Sequence[str], count: int, scores: PairScores) -> tuple[int, ...]:
    """Positions of `count` cards (2 or more, fewer than there are) with the highest sum of pair scores, ascending."""
    matrix = [[_score(scores, left, right) for right in cards] for left in cards]
    if comb(len(cards), count) * comb(count, 2) <= _EXACT_PAIR_LIMIT:
        return max(combinations(range(len(cards)), count), key=lambda chosen: total(matrix, chosen))
    # Slices of one card are alike: growing from the first of them is enough.
    seeds = [position for position, card in enumerate(cards) if cards.index(card) == position]
    grown = (_improved(matrix, _grown(matrix, seed, count)) for seed in seeds)
    return max(grown, key=lambda chosen: total(matrix, chosen))


def total(matrix: Sequence[Sequence[int]], chosen: Sequence[int]) -> int:
    """Sum of pair scores, pairs counted one way."""
    return sum(matrix[left][right] for left, right in combinations(chosen, 2))


def _score(scores: PairScores, left: str, right: str) -> int:
    return scores.get(left, {}).get(right, 0)


def _grown(matrix: Sequence[Sequence[int]], seed: int, count: int) -> tuple[int, ...]:
    chosen = [seed]
    gains = [_mutual(matrix, seed, other) for other in range(len(matrix))]
    while len(chosen) < count:
        best = max((other for other in range(len(matrix)) if other not in chosen), key=lambda other: gains[other])
        chosen.append(best)
        gains = [gain + _mutual(matrix, best, other) for other, gain in enumerate(gains)]
    return tuple(sorted(chosen))


def _improved(matrix: Sequence[Sequence[int]], chosen: tuple[int, ...]) -> tuple[int, ...]:
    """Swaps one card in for one out as long as that raises the total; ends because totals only grow."""
    members = list(chosen)
    outsiders = [other for other in range(len(matrix)) if other not in chosen]
    gains = [sum(_mutual(matrix, card, member) for member in members) for card in range(len(matrix))]
    while True:
        swaps = (
            (gains[new] - _mutual(matrix, new, old) - gains[old], new, old) for new in outsiders for old in members
        )
        profit, new, old = max(swaps, key=lambda swap: (swap[0], -swap[1], -swap[2]))
        if profit <= 0:
            return tuple(sorted(members))
        members[members.index(old)] = new
        outsiders[outsiders.index(new)] = old
        gains = [gain + _mutual(matrix, card, new) - _mutual(matrix, card, old) for card, gain in enumerate(gains)]


def _mutual(matrix: Sequence[Sequence[int]], left: int, right: int) -> int:
    """The score that the pair adds to `total`, which counts each pair once, lower position first."""
    return 0 if left == right else matrix[min(left, right)][max(left, right)]
