"""Every webhook and filter row of the public reports has a test that names it."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
WEBHOOK = (1, 2, 4, 5, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 22)
FILTER = (23, 25, 26, 28, 29, 31, 32, 34, 35, 37, 38, 40, 41, 43, 44, 46, 47, 49, 50, 52, 53, 55, 56, 58, 59)


def named_rows() -> set[int]:
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        for name in re.findall(r"def test_(\w+)", text):
            found |= {int(number) for number in re.findall(r"(?:^|_)[bB](\d{2,3})(?=_|$)", name)}
        found |= {int(number) for number in re.findall(r'id="B(\d{2,3})-', text)}
    return found


def test_all_forty_rows_are_named() -> None:
    assert len(WEBHOOK) + len(FILTER) == 40
    assert {*WEBHOOK, *FILTER} - named_rows() == set()


def test_control_a_row_that_nobody_names_is_seen() -> None:
    assert 3 not in named_rows()
