"""Figures that tests leave for the end of the run: one line each, printed as a table below the test summary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

ROWS: list[tuple[str, str, str]] = []
"""Table, what was tried, what came of it; conftest prints them."""


def note(table: str, what: str, figure: str) -> None:
    """Add a line."""
    ROWS.append((table, what, figure))


@contextlib.contextmanager
def timed(table: str, what: str) -> Iterator[None]:
    """Note how long the body took; a body that fails leaves no line."""
    started = time.monotonic()
    yield
    note(table, what, f"{time.monotonic() - started:5.1f} s")


def lines() -> list[str]:
    """The tables as text."""
    text: list[str] = []
    for table in dict.fromkeys(table for table, _, _ in ROWS):
        rows = [(what, figure) for kind, what, figure in ROWS if kind == table]
        width = max(len(what) for what, _ in rows)
        text += ["", table, *(f"  {what:<{width}}  {figure}".rstrip() for what, figure in rows)]
    return text
