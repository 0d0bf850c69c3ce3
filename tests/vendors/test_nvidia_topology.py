"""NVIDIA's topology-aware choice: the best linked cards, bounded search (spec/scheduler 4.6, report B47)."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.device_type import CardPick
from hami.core.model import MigPlacement, MigProfile, NodeState, Use
from hami.core.reasons import Reason, Rejection
from hami.vendors.nvidia.topology import best_linked, loneliest, total
from tests.core.build import device, node
from tests.vendors.nvidia_picks import ids, pick, request


def test_topology_counts_each_slice_of_a_mig_card_as_a_candidate() -> None:
    profile = MigProfile("1g.10gb", 100, 14, 1, tuple(MigPlacement(start, 1) for start in range(7)))
    state = node(device("M", mode="mig", slots=7, mig_profiles=(profile,)), device("G", index=1))
    outcome = pick(state, request(2), "topology-aware")
    assert ids(state, outcome) == ["M", "M"]
    assert isinstance(outcome, CardPick)
    assert [each.placement.start for each in outcome.slices if each] == [6, 5]


def scored(count: int, scores: dict[tuple[int, int], int]) -> NodeState:
    cards = [device(f"G{at}", index=at) for at in range(count)]
    table: dict[str, dict[str, int]] = {}
    for (left, right), score in scores.items():
        table.setdefault(f"G{left}", {})[f"G{right}"] = score
        table.setdefault(f"G{right}", {})[f"G{left}"] = score
    return node(*cards, pair_scores=table)


@pytest.mark.parametrize(
    ("state", "count", "expected"),
    [
        (scored(4, {(0, 1): 10, (2, 3): 50}), 2, ["G2", "G3"]),
        (scored(4, {(0, 1): 10, (2, 3): 50}), 1, ["G0"]),
        (scored(4, {(0, 1): 10, (0, 2): 10, (2, 3): 50}), 1, ["G1"]),
        (scored(4, {}), 2, ["G0", "G1"]),
        (scored(4, {}), 4, ["G0", "G1", "G2", "G3"]),
        (scored(8, {(at, at + 4): 60 for at in range(4)}), 4, ["G0", "G1", "G4", "G5"]),
    ],
)
def test_b47_topology_takes_the_best_linked_cards(state: NodeState, count: int, expected: list[str]) -> None:
    assert ids(state, pick(state, request(count), "topology-aware")) == expected


def test_topology_counts_only_cards_that_pass() -> None:
    state = scored(4, {(0, 1): 50, (2, 3): 10})
    taken = NodeState(state.name, state.devices, (Use(10), Use(), Use(), Use()), pair_scores=state.pair_scores)
    assert ids(taken, pick(taken, request(2), "topology-aware")) == ["G2", "G3"]
    outcome = pick(taken, request(4), "topology-aware")
    assert isinstance(outcome, Rejection)
    assert outcome.counts == (
        (Reason.CARD_TIME_SLICING_EXHAUSTED, 1),
        (Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, 3),
    )


def test_sixteen_cards_in_two_islands_are_told_apart() -> None:
    """Above the exact limit: eight cards of one island, whichever card the search begins with."""
    scores = {
        (left, right): 100 if left % 2 == right % 2 else 10 for left, right in combinations(range(16), 2)
    }  # fmt: skip
    state = scored(16, scores)
    assert ids(state, pick(state, request(8), "topology-aware")) == [f"G{at}" for at in range(0, 16, 2)]


matrices = st.integers(9, 12).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 60), min_size=size, max_size=size), min_size=size, max_size=size)
)


@settings(max_examples=25, deadline=None)
@given(matrices, st.integers(4, 6))
def test_the_bounded_search_comes_close_to_the_best(matrix: list[list[int]], count: int) -> None:
    cards = [str(at) for at in range(len(matrix))]
    scores = {left: dict(zip(cards, row, strict=True)) for left, row in zip(cards, matrix, strict=True)}
    chosen = best_linked(cards, count, scores)
    assert chosen == best_linked(cards, count, scores)
    assert len(set(chosen)) == count
    best = max(total(matrix, each) for each in combinations(range(len(matrix)), count))
    assert total(matrix, chosen) >= 0.9 * best


@pytest.mark.parametrize("count", [2, 4, 8, 12])
def test_sixteen_cards_do_as_well_as_the_best_of_many_guesses(count: int) -> None:
    """Where every set cannot be tried: not below the best of 400 random sets, and the same each time."""
    for seed in range(5):
        rng = Random(seed)
        cards = [f"G{at}" for at in range(16)]
        scores = {left: {right: rng.choice((0, 10, 50, 300)) for right in cards if right != left} for left in cards}
        matrix = [[scores[left].get(right, 0) for right in cards] for left in cards]
        chosen = best_linked(cards, count, scores)
        assert chosen == best_linked(cards, count, scores)
        guesses = (tuple(sorted(rng.sample(range(16), count))) for _ in range(400))
        assert total(matrix, chosen) >= max(total(matrix, guess) for guess in guesses)


@pytest.mark.parametrize("count", range(2, 8))
def test_up_to_eight_cards_the_best_set_is_found_and_of_equals_the_first(count: int) -> None:
    for seed in range(60):
        cards, scores, matrix = linked(seed, 8)
        sets = list(combinations(range(8), count))
        assert best_linked(cards, count, scores) == max(sets, key=lambda each: total(matrix, each)), seed


@pytest.mark.parametrize(("seed", "count"), [(16, 4), (10, 5), (14, 5), (16, 5), (30, 5), (54, 5)])
def test_sixteen_cards_where_growing_alone_misses_the_best(seed: int, count: int) -> None:
    """4,368 sets of five are more than are tried; swaps find the best one here."""
    cards, scores, matrix = linked(seed, 16)
    best = max(total(matrix, each) for each in combinations(range(16), count))
    assert total(matrix, best_linked(cards, count, scores)) == best


def linked(seed: int, size: int) -> tuple[list[str], dict[str, dict[str, int]], list[list[int]]]:
    """Cards, their pair scores as annotations have them, and as a matrix."""
    rng = Random(seed)
    cards = [f"G{at}" for at in range(size)]
    matrix = [[0] * size for _ in range(size)]
    for left, right in combinations(range(size), 2):
        matrix[left][right] = matrix[right][left] = rng.choice((0, 10, 50, 300))
    scores = {card: dict(zip(cards, row, strict=True)) for card, row in zip(cards, matrix, strict=True)}
    return cards, scores, matrix


def test_the_loneliest_card_is_the_first_of_equals() -> None:
    assert loneliest(["a", "b", "c"], {"a": {"b": 5}, "b": {"a": 5}}) == 2
    assert loneliest(["a", "b"], {}) == 0
