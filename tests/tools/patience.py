"""How long tests on real nodes may take."""

from __future__ import annotations

from pathlib import Path

import pytest

LIMIT_S = 1800
"""For one test. Waits within end earlier and say what they waited for."""


def give_time(items: list[pytest.Item], folder: Path) -> None:
    """Every test below `folder` gets `LIMIT_S`."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.timeout(LIMIT_S))
