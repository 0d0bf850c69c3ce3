"""Fixtures of the tests of running schedulers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.apps.certified import World
from tests.apps.rig import Rig, rigged


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path) as found:
        yield found


@pytest.fixture
async def world(rig: Rig) -> World:
    found = World(rig)
    await found.configure()
    return found
