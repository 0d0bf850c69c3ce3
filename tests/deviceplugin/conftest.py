"""A node for each test, in a folder with a short name: a unix socket's path has 107 bytes at most."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.deviceplugin.bench import Bench, bench


@pytest.fixture
async def node() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as folder:
        async with bench(Path(folder)) as made:
            yield made
