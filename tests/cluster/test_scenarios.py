"""The scenarios of tests/scenarios on the real control plane, compared with the embedded cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.cluster import results
from tests.scenarios import report
from tests.scenarios.load import load
from tests.scenarios.runner import Report, differences, run
from tests.scenarios.worlds import REAL, SIM


@pytest.mark.usefixtures("binaries")
def test_real_control_plane_ends_like_the_embedded_cluster() -> None:
    scenarios = load()
    reports: list[Report] = []
    for world in (SIM, REAL):
        with tempfile.TemporaryDirectory(prefix="hami-sc-", ignore_cleanup_errors=True) as folder:
            reports.append(run(world, scenarios, Path(folder)))
    unlike = differences(*reports)
    for line in report.table(reports, unlike).splitlines():
        results.note("Scenarios on the embedded cluster and the real control plane", line, "")
    failures = report.failures(reports, unlike)
    assert not failures, "\n" + "\n".join(failures)
