"""A node for each test, in a folder with a short name: a unix socket's path has 107 bytes at most."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import structlog

from hami.deviceplugin import allocate
from tests.deviceplugin.bench import DEADLINE_S, Bench, bench
from tests.deviceplugin.fuzz_world import World
from tests.deviceplugin.mig_node import MigNode


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow this machine is, the writes about a failed call are made."""
    monkeypatch.setattr(allocate, "_FAILURE_TIMEOUT_S", DEADLINE_S)


@pytest.fixture
async def node() -> AsyncIterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="hami-dp-") as folder:
        async with bench(Path(folder)) as made:
            yield made


@pytest.fixture
def mig(node: Bench) -> MigNode:
    return MigNode(node)


@pytest.fixture(scope="module")
def quiet_logs() -> Iterator[None]:
    """Only what is critical is logged: thousands of refusals are what is wanted here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def world(quiet_logs: None) -> Iterator[World]:
    """Allocate over pods in memory."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="hami-dp-", dir=place) as folder:
        made = World(Path(folder))
        yield made
        made.loop.run_until_complete(made.loop.shutdown_default_executor())
        made.loop.close()
