"""docs/explanation/shim-faults.md names what is there: 69 rows; each test, scenario, route and way in it exists."""

from __future__ import annotations

import re

import pytest

from tests.shim import harness
from tests.shim.route_names import ROUTES, WAYS

PAGE = harness.HERE.parents[1] / "docs" / "explanation" / "shim-faults.md"
ROW = re.compile(r"^\| (\d+) \| (.+?) \| ([TCPO]) \| (.+) \|$", re.MULTILINE)


def _names() -> set[str]:
    """Everything a row may point at."""
    names = {route for route, _, _ in ROUTES} | set(WAYS)
    for path in harness.HERE.glob("test_*.py"):
        tests = re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        names |= set(tests) | {f"{path.name}::{test}" for test in tests}
    for path in (harness.HERE / "programs").glob("*.c"):
        names |= set(re.findall(r'\{"(\w+)", \w+\}', path.read_text()))
    return names


ROWS = ROW.findall(PAGE.read_text())


def test_all_sixty_nine_are_answered() -> None:
    assert [int(number) for number, _, _, _ in ROWS] == list(range(1, 70))


@pytest.mark.parametrize(("number", "mark", "answer"), [(n, mark, answer) for n, _, mark, answer in ROWS])
def test_what_a_row_names_exists(number: str, mark: str, answer: str) -> None:
    named = set(re.findall(r"`([^`]+)`", answer)) & _candidates(answer)
    missing = named - _names()
    assert not missing, f"row {number}"
    if mark == "T":
        assert named, f"row {number} claims a test and names none"


def _candidates(answer: str) -> set[str]:
    """Quoted words that mean a test, scenario, route or way (not a program, variable or call outside the tests)."""
    outside = {"ncu", "make bench", "CUDA_OVERSUBSCRIBE"}
    return set(re.findall(r"`([^`]+)`", answer)) - outside
