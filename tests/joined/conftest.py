"""A node whose containers are real processes: kubelet stand-in, our device plugin as a process, one A100 profile."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from hami.sim.containers import toolkit
from hami.sim.containers.toolkit import ContainersUnavailableError, Toolkit
from tests.joined.node import Node, joined_node


@pytest.fixture(scope="session")
def kit() -> Toolkit:
    """Built files; a machine without what they need is a printed skip, in CI a failure."""
    cache = Path(os.environ.get("HAMI_CACHE") or Path(tempfile.gettempdir()) / f"hami-cache-{os.getuid()}")
    try:
        return toolkit.prepare(cache, print)
    except ContainersUnavailableError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(f"containers cannot be real processes: {error}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_node(kit: Toolkit) -> AsyncIterator[Node]:
    """One for the module: its plugin takes seconds to start. The folder's name is short: sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="hami-jn-") as folder:
        async with joined_node(kit, Path(folder)) as made:
            yield made


@pytest_asyncio.fixture(loop_scope="module")
async def node(shared_node: Node) -> AsyncIterator[Node]:
    """The node without pods."""
    yield shared_node
    await shared_node.empty()
