"""Every scenario on the embedded cluster, and one that lies."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import missing_tools
from tests.scenarios import report
from tests.scenarios.load import load, parse
from tests.scenarios.runner import run
from tests.scenarios.worlds import SIM

LIES = """
- name: takes-the-other-card
  source: negative control
  nodes: {n1: {cards: [{}, {}]}}
  limit_s: 2
  steps: [{create: {name: p, containers: [{gpu: 1, gpumem: 1}]}}]
  out: {p: {node: n1, shares: [[[1, 1, 0]]]}}
- name: waits-though-there-is-room
  source: negative control
  nodes: {n1: {cards: [{}]}}
  limit_s: 2
  steps: [{create: {name: p, containers: [{gpu: 1}]}}]
  out: {p: {waits: []}}
- name: says-something-else
  source: negative control
  nodes: {n1: {cards: [{}]}}
  limit_s: 2
  steps: [{create: {name: p, containers: [{gpu: 2}]}}]
  out: {p: {waits: [], says: [all is well]}}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: paths of unix sockets end at 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="hami-sc-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.timeout(400)
@pytest.mark.skipif(missing_tools() is not None, reason="util-linux is missing")
def test_embedded_cluster(folder: Path) -> None:
    lies = parse(LIES, "lies")
    outcome = run(SIM, [*load(), *lies], folder)
    false = {one.name for one in lies}
    assert {one.scenario.name for one in outcome.failed if one.scenario.name in false} == false, "a lie went through"
    failures = [line for line in report.failures([outcome], {}) if line.split(": ")[1] not in false]
    assert not failures, "\n" + "\n".join(failures)
