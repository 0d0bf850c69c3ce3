"""Promises 1 and 2 over random histories with real interleavings: 50,000 steps and more here, millions with HAMI_SOAK.

Seeds are fixed: a failure names its history. With a mechanism taken away the same histories must break the promise.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import msgspec
import pytest

from hami.placement.bind import Binder
from hami.placement.claims import Claim
from hami.placement.in_flight import BindCall
from hami.placement.node_token import HeldToken
from tests.placement import histories

SOAK = os.environ.get("HAMI_SOAK", "0") not in ("", "0")
STEPS = 2500
BLOCKS, SEEDS = (50, 40) if SOAK else (4, 6)


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_history_gives_a_card_twice_or_leaves_a_pod_waiting(block: int) -> None:
    steps = sum(histories.play(seed, STEPS).steps for seed in range(block * SEEDS, (block + 1) * SEEDS))
    assert steps >= STEPS * SEEDS
    if not SOAK:
        assert steps * BLOCKS >= 50_000


def test_one_seed_is_one_history() -> None:
    first, second = histories.play(3, 500), histories.play(3, 500)
    assert (first.changes, first.loop.time(), first.server.calls) == (
        second.changes,
        second.loop.time(),
        second.server.calls,
    )


async def secure_without_a_list(
    self: Binder, call: BindCall, held: HeldToken, secure: Callable[..., object] = Binder._secure
) -> Claim:
    return await secure(self, call, msgspec.structs.replace(held, strange_epoch=False))  # type: ignore[misc, no-any-return]


def test_without_the_list_of_strange_epochs_a_card_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: the other mechanisms have theirs in test_token_fence."""
    monkeypatch.setattr(Binder, "_secure", secure_without_a_list)
    with pytest.raises(AssertionError, match="holds 3 pods"):
        play_many(range(11, 71))


def play_many(seeds: range) -> None:
    for seed in seeds:
        histories.play(seed, STEPS)
