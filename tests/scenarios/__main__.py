"""`python -m tests.scenarios`: runs the scenarios and prints the table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import build
from tests.cluster.processes import missing_tools
from tests.scenarios import report
from tests.scenarios.check import problems
from tests.scenarios.load import ScenarioError, chosen, load
from tests.scenarios.model import Scenario
from tests.scenarios.runner import differences, run
from tests.scenarios.worlds import REAL, SIM


def _wanted(everything: Sequence[Scenario], words: str) -> list[Scenario]:
    found = chosen(everything, words)
    if not found:
        raise ScenarioError(f"--only {words!r}: no scenario's name contains this")
    return found


def main() -> int:
    """Command line; 0 when everything is as written in each world that ran."""
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios", description=__doc__, allow_abbrev=False)
    parser.add_argument("--world", choices=[SIM, REAL], help="one world only; both by default")
    parser.add_argument("--only", default="", metavar="WORDS", help="scenarios whose name contains this")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="name the N slowest of each world")
    options = parser.parse_args()
    try:
        everything = load()
        wanted = _wanted(everything, options.only)
    except ScenarioError as error:
        print(error, file=sys.stderr)
        return 2
    if impossible := problems(everything):
        print("\n".join(impossible), file=sys.stderr)
        return 2
    worlds = [options.world] if options.world else [SIM, REAL]
    reason = build.missing_prerequisite() or missing_tools()
    if REAL in worlds and reason is not None:
        print(f"no real control plane here: {reason}", file=sys.stderr)
        worlds.remove(REAL)
    reports = []
    for world in worlds:
        with tempfile.TemporaryDirectory(prefix="hami-sc-", ignore_cleanup_errors=True) as folder:
            reports.append(run(world, wanted, Path(folder)))
    unlike = differences(reports[0], reports[1]) if len(reports) > 1 else {}
    for one in reports:
        slowest = sorted(one.results.values(), key=lambda result: -result.seconds)[: options.slowest]
        for result in slowest:
            print(f"{one.world}: {result.scenario.name} took {result.seconds:.1f} s")
    failed = report.failures(reports, unlike)
    for line in failed:
        print(line)
    if reports:
        print(report.table(reports, unlike))
    for line in report.reasons(list(reports[0].results.values())) if reports else []:
        print(f"  {line}")
    return 1 if failed or not reports else 0


if __name__ == "__main__":
    sys.exit(main())
