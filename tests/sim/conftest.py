"""Fixtures of the stand-ins' tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from hami.sim.apiserver import ApiServer
from hami.sim.cluster import SimCluster
from tests.sim.http import Http
from tests.sim.toys import ToyExtender
from tests.sim.worlds import real_plane, world

__all__ = ["http", "real_plane", "server", "world"]


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_interval_s=0.2) as running:
        yield running


@pytest.fixture
async def http(server: ApiServer) -> AsyncIterator[Http]:
    async with aiohttp.ClientSession() as session:
        yield Http(session, server.base_url)


@pytest.fixture
async def cluster() -> AsyncIterator[SimCluster]:
    async with SimCluster() as running:
        yield running


@pytest.fixture
async def extender(cluster: SimCluster) -> AsyncIterator[ToyExtender]:
    running = ToyExtender(cluster.base_url)
    await running.start()
    yield running
    await running.stop()
