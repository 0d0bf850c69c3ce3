"""docs/explanation/plugin-traps.md names what is there: 45 rows, and each test in them exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/explanation/plugin-traps.md").read_text()
ROWS = re.findall(r"^\| (\d+) \| (.+?) \| ([TCP]) \| (.+) \|$", PAGE, re.MULTILINE)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_all_forty_five_are_answered() -> None:
    assert [int(number) for number, _, _, _ in ROWS] == list(range(1, 46))


@pytest.mark.parametrize(("number", "mark", "answer"), [(number, mark, answer) for number, _, mark, answer in ROWS])
def test_what_a_row_names_exists(number: str, mark: str, answer: str) -> None:
    named = NAMED.findall(answer)
    assert len(named) == answer.count("tests/"), "every test is named as `file::name`"
    for file, name in named:
        assert re.search(rf"^(?:async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}::{name}"
    if mark != "C":
        assert named, f"row {number} claims a test and names none"
    else:
        assert len(NAMED.sub("", answer).split()) > 5, f"row {number} gives no reason"
