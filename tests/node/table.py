"""The fault table: what was broken, what was seen, and how long until all ran again. Printed after the tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

ROWS: list[tuple[str, str, float]] = []


def note(fault: str, seen: str, seconds: float) -> None:
    """Add a row."""
    ROWS.append((fault, seen, seconds))


def counted(failed: Mapping[str, str]) -> str:
    """Reasons of failed pods with their numbers."""
    reasons = Counter(reason.partition(":")[0] for reason in failed.values())
    return ", ".join(f"{number} failed with {reason}" for reason, number in reasons.items()) or "none failed"


def lines() -> list[str]:
    """The table as text."""
    first = max((len(fault) for fault, _, _ in ROWS), default=0)
    second = max((len(seen) for _, seen, _ in ROWS), default=0)
    return [f"{fault:<{first}}  {seen:<{second}}  {seconds:6.1f} s" for fault, seen, seconds in ROWS]
