"""Functions that the shim hooks."""

from __future__ import annotations

import re

from tests.shim import harness


def hooked() -> set[str]:
    """Symbols that the shim answers for (hami/shim/src/hooks.def)."""
    text = (harness.SHIM_SOURCES / "src" / "hooks.def").read_text()
    return set(re.findall(r"^HOOK\(\w+, (\w+),", text, re.MULTILINE))
