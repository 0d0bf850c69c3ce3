"""Fixtures of the control-plane layer. Without Go the layer is skipped, with CI=true it fails."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import build, failure_report, results
from tests.cluster.build import Binaries
from tests.cluster.components import Cluster
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import Workspace
from tests.cluster.processes import missing_tools

LIMIT_S = 1800
"""For one test. Waits within end earlier and say what they waited for."""
RUNNING: list[Cluster] = []
BARE: list[ControlPlane] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything beside this file needs the real control plane, and time."""
    for item in items:
        if here_or_below(item.path):
            item.add_marker(pytest.mark.control_plane)
            item.add_marker(pytest.mark.timeout(LIMIT_S))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A pytest-xdist worker hands over what its tests measured."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["rows"] = results.ROWS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker measured."""
    results.ROWS.extend(tuple(row) for row in getattr(node, "workeroutput", {}).get("rows", []))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests measured."""
    for line in results.lines():
        terminalreporter.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show with every failure what the cluster and our logs say."""
    report = yield
    if report.failed and here_or_below(item.path):
        try:
            report.sections += situation(getattr(item, "funcargs", {}).get("tmp_path"))
        except Exception as error:  # noqa: BLE001, whatever it is, it must not hide the failure
            report.sections.append(("nothing can be told of the cluster", repr(error)))
    return report


def situation(folder: Path | None) -> list[tuple[str, str]]:
    """Headings and texts about every cluster that runs, and the logs in the test's own folder."""
    shown = [cluster.plane for cluster in RUNNING]
    return [
        *(section for cluster in RUNNING for section in failure_report.of_cluster(cluster)),
        *(section for plane in BARE if plane not in shown for section in failure_report.of_plane(plane)),
        *(failure_report.of_files(folder) if folder is not None else []),
    ]


def here_or_below(path: Path) -> bool:
    """True for a file of this layer."""
    return Path(__file__).parent in path.parents


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    """The built control plane; built now if need be."""
    reason = build.missing_prerequisite() or missing_tools()
    if reason is not None and os.environ.get("CI", "").lower() == "true":
        pytest.fail(f"CI must run the control-plane layer: {reason}")
    if reason is not None:
        pytest.skip(reason)
    return build.ensure()


@pytest.fixture(scope="module")
def plane(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A bare control plane, not started."""
    control_plane = ControlPlane(binaries, tmp_path_factory.mktemp("control-plane"))
    BARE.append(control_plane)
    try:
        yield control_plane
    finally:
        control_plane.stop()
        BARE.remove(control_plane)


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    """Start a cluster, stop it in the end, and have its logs shown with failures meanwhile."""
    RUNNING.append(cluster)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        RUNNING.remove(cluster)


@pytest.fixture
def workspace(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[Workspace]:
    """A namespace of this test's own in the module's `cluster`."""
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")
    space = Workspace(cluster.api, words.removeprefix("test-")[:40].strip("-"))
    space.create()
    yield space
    space.clear()
