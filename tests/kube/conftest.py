"""An API server stand-in and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_interval_s=0.2) as server:
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
    path = api.write_kubeconfig(tmp_path / "kubeconfig")
    async with await ApiClient.load(str(path), qps=1000, burst=1000) as opened:
        yield opened
