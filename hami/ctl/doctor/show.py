"""The doctor's report: for people, or as one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.text import Text

from hami.ctl.console import Console, json_text, shown
from hami.ctl.doctor.findings import Finding, Severity, is_trouble

PLAIN_WIDTH: Final = 110
_STYLES: Final = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


class Report(msgspec.Struct, frozen=True, rename="camel"):
    """Everything that was found. `ok`: nothing is wrong (notes apart)."""

    ok: bool
    nodes: int
    pods: int
    cards: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    certificates: tuple[str, ...] = ()
    """From when to when each certificate that was seen is valid."""


def print_json(report: Report) -> None:
    """The report on stdout, for programs."""
    sys.stdout.write(json_text(report) + "\n")


def print_text(report: Report) -> None:
    """The report on stdout, for people: each finding, and what to do."""
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    for finding in report.findings:
        mark = (f"{finding.severity.upper():<8}", _STYLES[finding.severity])
        console.print(Text.assemble(mark, (shown(finding.subject), "bold"), f"  [{finding.check}]"))
        console.print(Text(f"        {shown(finding.problem)}"))
        if finding.advice:
            console.print(Text(f"        → {shown(finding.advice)}", style="dim"))
    for line in report.certificates:
        console.print(Text(shown(line), style="dim"))
    for note in report.notes:
        console.print(Text(f"not looked at: {shown(note)}", style="dim"))
    console.print(
        Text(_summary(report.findings) + f" ({report.nodes} nodes, {report.cards} cards, {report.pods} pods)")
    )


def _summary(findings: Sequence[Finding]) -> str:
    trouble = [each for each in findings if is_trouble(each)]
    if not trouble:
        return "nothing is wrong"
    errors = sum(each.severity is Severity.ERROR for each in trouble)
    return f"{errors} errors, {len(trouble) - errors} warnings"
