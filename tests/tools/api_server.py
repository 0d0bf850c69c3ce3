"""The stand-in API server and a client of ours for it, for tests that need nothing else of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer


async def connected(api: ApiServer, folder: Path) -> ApiClient:
    """A client that comes to `api` as users do, by a kubeconfig, which lies in `folder`; it holds no call back."""
    return await ApiClient.load(str(api.write_kubeconfig(folder / "kubeconfig")), qps=0)


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    """A server of the test's own; its watches have bookmarks each 0.2 s."""
    async with ApiServer(bookmark_interval_s=0.2) as server:
        yield server


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[ApiClient]:
    """A client of `api`."""
    async with await connected(api, tmp_path) as opened:
        yield opened
