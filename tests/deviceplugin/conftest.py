"""A node for each test, in a folder with a short name: a unix socket's path has 107 bytes at most."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami.deviceplugin import allocate
from tests.deviceplugin.bench import DEADLINE_S, Bench, bench


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, the writes about a failed call are made."""
    monkeypatch.setattr(allocate, "_FAILURE_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
async def node() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as folder:
        async with bench(Path(folder)) as made:
            yield made
