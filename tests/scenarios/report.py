"""The table that people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.scenarios.runner import Report, Result


def table(reports: Sequence[Report], differences: Mapping[str, Sequence[str]]) -> str:
    """World, count, failures, differences between the worlds, seconds."""
    reasoned = sum(result.scenario.differs is not None for result in reports[0].results.values())
    lines = [f"{'world':<8}{'scenarios':>10}{'as written':>12}{'seconds':>9}"]
    lines += [
        f"{one.world:<8}{len(one.results):>10}{len(one.results) - len(one.failed):>12}{one.seconds:>9.1f}"
        for one in reports
    ]
    if len(reports) > 1:
        lines.append(
            f"differences between the worlds: {len(differences)} unexplained, {reasoned} with a written reason"
        )
    return "\n".join(lines)


def failures(reports: Sequence[Report], differences: Mapping[str, Sequence[str]]) -> list[str]:
    """Everything that is not as written, one line each."""
    lines = [
        f"{one.world}: {result.scenario.name}: {text}"
        for one in reports
        for result in one.failed
        for text in result.problems
    ]
    return lines + [f"worlds differ: {name}: {text}" for name, texts in differences.items() for text in texts]


def reasons(results: Sequence[Result]) -> list[str]:
    """Scenarios that differ between the worlds, with the reason."""
    return [f"{one.scenario.name}: {one.scenario.differs.why}" for one in results if one.scenario.differs is not None]
