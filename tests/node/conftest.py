"""Fixtures of the node layer. Outside of its namespaces it is skipped, with CI=true it fails."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from hami.sim.containers import toolkit
from tests.cluster import build
from tests.cluster.pods import Workspace
from tests.cluster.processes import wait_until
from tests.node import namespace, table, tools
from tests.node.gpu import GpuNode
from tests.node.onenode import OneNode
from tests.tools.patience import give_time

LOG_LINES_SHOWN = 8
RUNNING: list[OneNode] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    give_time(items, Path(__file__).parent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the last lines of the node's logs with a failure."""
    report = yield
    if report.failed and Path(__file__).parent in item.path.parents:
        for node in RUNNING:
            for process in (node.containerd.process, node.kubelet.process):
                report.sections.append((str(process.log), process.tail(LOG_LINES_SHOWN)))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the fault table."""
    if table.ROWS:
        terminalreporter.section("faults on the node")
        for line in table.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    """A started one-node cluster."""
    if namespace.cgroup() is None:
        reason = "run in namespaces of its own: scripts/test_layers.py node"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(f"CI must run the node layer: {reason}")
        pytest.skip(reason)
    one = OneNode(build.ensure(), tools.ensure(), tmp_path_factory.mktemp("node"))
    RUNNING.append(one)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        RUNNING.remove(one)


@pytest.fixture(scope="session")
def gpus(node: OneNode) -> Iterator[GpuNode]:
    """The node with our scheduler, webhook and device plugin on it."""
    gpu_node = GpuNode(node, toolkit.prepare(build.cache_root(), print))
    try:
        gpu_node.start()
        yield gpu_node
    finally:
        gpu_node.stop()


@pytest.fixture
def space(request: pytest.FixtureRequest, gpus: GpuNode) -> Iterator[Workspace]:
    """A namespace of this test's own."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    workspace = Workspace(gpus.node.plane.api, words.removeprefix("test-")[:40].strip("-"))
    workspace.create()
    yield workspace
    workspace.clear()


@pytest.fixture
def usual_plugin_again(gpus: GpuNode) -> Iterator[None]:
    """Whatever the test did to the plugin, the node has its own cards afterwards."""
    yield
    gpus.restore_plugin()
    own = 10 * gpus.card_count
    wait_until(lambda: len(gpus.registered()) == gpus.card_count, 60, "the node's own cards are registered again")
    wait_until(lambda: (gpus.offered(), gpus.shares()) == (own, own), 60, "the node's own shares are offered again")
