"""The soak run in small: it passes, says how to go on, and finds faults that only some steps show."""

from __future__ import annotations

import re

import pytest

from hami.core.reasons import Reason
from hami.vendors.nvidia import cards
from tests.reference import soak


@pytest.mark.parametrize("block", range(len(soak.WORLDS)))
async def test_a_block_of_each_kind_of_world_agrees(block: int) -> None:
    assert await soak.run_block(7, block, soak.ORACLE_EVERY) == []


def test_a_run_says_seed_progress_and_how_to_go_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "PROGRESS_S", 0.0)
    assert soak.main(["--steps", "1200", "--seed", "3", "--from-block", "1"]) == 0
    told = capsys.readouterr().out
    assert "seed 3, blocks 1 to 2" in told
    assert "go on with --seed 3 --from-block 2" in told
    assert re.search(r"soak: 800 steps in \d+ s, seed 3: nothing differs", told)


async def test_the_same_block_is_the_same_life() -> None:
    """Resumable by seed: what a block does depends on nothing that ran before it."""
    first = await soak.run_block(3, 2, 1)
    await soak.run_block(3, 1, soak.ORACLE_EVERY)
    assert await soak.run_block(3, 2, 1) == first


def test_control_a_check_that_is_missing_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without the test of memory the oracle, asked every 20th step, disagrees; the block says so."""
    right = cards.refused_amount

    def wrong(*arguments: object) -> Reason | None:
        reason = right(*arguments)  # type: ignore[arg-type]
        return None if reason is Reason.CARD_INSUFFICIENT_MEMORY else reason

    monkeypatch.setattr(cards, "refused_amount", wrong)
    assert soak.main(["--steps", "8000"]) == 1
    told = capsys.readouterr().out
    found = re.search(r"FAILED in block \d+ \(--seed 0 (--block \d+)\)", told)
    assert found is not None, told
    assert soak.main(["--seed", "0", *found[1].split()]) == 1
