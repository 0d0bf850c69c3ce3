"""Pages of docs/reference that are made from the code are as the code makes them, and leave no code out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hami.core.reason_texts import REASON_TEXTS
from hami.core.reasons import Reason

ROOT = Path(__file__).resolve().parents[2]


def test_pages_are_up_to_date() -> None:
    command = [sys.executable, "scripts/docs_reference.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_code_is_explained() -> None:
    assert set(REASON_TEXTS) == set(Reason)
    page = (ROOT / "docs" / "reference" / "reason-codes.md").read_text()
    for reason in Reason:
        assert f"### {reason}\n" in page
        assert REASON_TEXTS[reason].what_to_do in page


def test_codes_that_are_given_say_what_is_compared() -> None:
    """What the evaluator can give is what vendors name; the others say that they are never given."""
    sources = "".join(path.read_text() for room in ("core", "vendors") for path in (ROOT / "hami" / room).rglob("*.py"))
    for reason in Reason:
        named = sources.replace(f"    Reason.{reason.name}: ReasonText", "").count(f"Reason.{reason.name}")
        assert bool(REASON_TEXTS[reason].check) == (named > 0), reason
