"""Fixtures of the cluster layer: one node, our images, one release. Tests here build on each other, in order."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import results
from tests.helm import node, tenant
from tests.helm.cluster import NAMESPACE, User
from tests.helm.release import install
from tests.tools.patience import give_time

STEPS: list[tuple[str, float, str]] = []


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[node.Machine]:
    """A node with our images in its containerd."""
    with node.running(tmp_path_factory.mktemp("node")) as started:
        yield started


@pytest.fixture(scope="session")
def user(machine: node.Machine) -> User:
    """A person with all rights."""
    return machine.user


@pytest.fixture(scope="session")
def installed(user: User) -> float:
    """The release; when its installation began, by the monotonic clock."""
    started = time.monotonic()
    install(user)
    results.note("Installing", "helm install --wait, two schedulers", f"{time.monotonic() - started:.1f} s")
    return started


@pytest.fixture(scope="session")
def cards(machine: node.Machine, user: User, installed: float) -> Path:
    """The node's folder that describes the stand-in driver's cards."""
    tenant.write_cards(machine.cards, user.cards())
    return machine.cards


@pytest.fixture(autouse=True)
def audited(user: User) -> Iterator[None]:
    """After each step no card holds more than it has."""
    yield
    user.audit()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    give_time(items, Path(__file__).parent)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps each step's time, and shows what our pods say with a failure."""
    report = yield
    if Path(__file__).parent in item.path.parents:
        if report.when == "call":
            name = item.name.removeprefix("test_").replace("_", " ")
            STEPS.append((name, report.duration, "" if report.passed else "FAILED"))
        if report.failed:
            report.sections.append((f"what {NAMESPACE} says", situation()))
    return report


def situation() -> str:
    """Pods, events and the ends of our logs, as far as they can be had."""
    try:
        return node.our_logs()
    except Exception as error:  # noqa: BLE001, whatever it is, it must not hide the failure
        return f"nothing can be told: {error!r}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table of steps and the figures."""
    width = max((len(name) for name, _, _ in STEPS), default=0)
    for name, seconds, outcome in STEPS:
        terminalreporter.write_line(f"  {name:<{width}} {seconds:>6.1f} s {outcome}")
    for line in results.lines():
        terminalreporter.write_line(line)
