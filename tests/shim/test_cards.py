"""Several cards: limits follow the card, not the position a process sees it at (B124)."""

from __future__ import annotations

import pytest

from tests.shim.conftest import ContainerFactory
from tests.shim.container import card, json_lines
from tests.shim.harness import MIB

CARDS = tuple(card(i) for i in range(4))
LIMITS_MIB = (100, 200, 300, 400)


def _hex(index: int) -> str:
    return CARDS[index].uuid.removeprefix("GPU-").replace("-", "")


VISIBLE: tuple[tuple[str | None, tuple[int, ...]], ...] = (
    (None, (0, 1, 2, 3)),
    ("2,3", (2, 3)),
    ("3,0", (3, 0)),
    (CARDS[2].uuid, (2,)),
    (f"{CARDS[3].uuid},{CARDS[1].uuid}", (3, 1)),
    (CARDS[1].uuid[:12], (1,)),
    ("1,9,2", (1,)),
    ("1,-1,2", (1,)),
)


@pytest.mark.parametrize(("visible", "indices"), VISIBLE)
def test_limit_of_each_visible_card(container: ContainerFactory, visible: str | None, indices: tuple[int, ...]) -> None:
    box = container(limit_mib=LIMITS_MIB, cards=CARDS)
    rows = json_lines(box.run("cards", 150, extra={"CUDA_VISIBLE_DEVICES": visible}))
    assert [row["uuid"] for row in rows] == [_hex(i) for i in indices]
    for row, index in zip(rows, indices, strict=True):
        fits = LIMITS_MIB[index] >= 150
        assert row["whole"] == row["total"] == LIMITS_MIB[index] * MIB
        assert row["alloc"] == (0 if fits else 2)
        assert row["card_used"] == (150 * MIB if fits else 0)
        assert row["free"] == row["total"] - row["card_used"]


def test_cards_in_another_order_than_the_machine(container: ContainerFactory) -> None:
    box = container(limit_mib=(100, 300), cards=CARDS, visible=(CARDS[3], CARDS[1]))
    rows = json_lines(box.run("cards", 150))
    assert [(row["uuid"], row["total"], row["alloc"]) for row in rows] == [
        (_hex(3), 100 * MIB, 2),
        (_hex(1), 300 * MIB, 0),
    ]


def test_processes_that_see_different_cards_meet_in_one_account(container: ContainerFactory) -> None:
    box = container(limit_mib=(100, 100), cards=CARDS[:2])
    with box.holding(80, extra={"CUDA_VISIBLE_DEVICES": "1"}):
        rows = json_lines(box.run("cards", 50))
        assert [row["alloc"] for row in rows] == [0, 2]
        assert rows[1]["free"] == 20 * MIB


@pytest.mark.parametrize("text", ["", "-1", "none"])
def test_no_device_is_an_ordinary_silent_result(container: ContainerFactory, text: str) -> None:
    done = container(limit_mib=100).run("cards", 10, extra={"CUDA_VISIBLE_DEVICES": text})
    assert json_lines(done) == [{"init": 100}]
    assert done.stderr == ""


def test_count_uuid_and_version_are_the_drivers(container: ContainerFactory) -> None:
    box = container(limit_mib=LIMITS_MIB, cards=CARDS)
    with_shim = json_lines(box.run("cards", 1))
    without = json_lines(box.run("cards", 1, shim=False))
    assert [row["uuid"] for row in with_shim] == [row["uuid"] for row in without]


def test_sixteen_cards(container: ContainerFactory) -> None:
    cards = tuple(card(i) for i in range(16))
    rows = json_lines(container(limit_mib=tuple(range(20, 36)), cards=cards).run("cards", 1))
    assert [row["total"] for row in rows] == [mib * MIB for mib in range(20, 36)]


def test_memory_of_another_card_than_the_current_one(container: ContainerFactory) -> None:
    """cuMemCreate names its card; the thread's current card is not charged (HAMi-core#169, #187)."""
    done = container(limit_mib=(100, 50), cards=CARDS[:2]).run("scenarios", "create_on_second_card")
    assert done.returncode == 0, done.stdout
