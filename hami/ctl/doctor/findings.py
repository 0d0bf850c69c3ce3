"""What the doctor says about one thing."""

from __future__ import annotations

import enum

import msgspec


class Severity(enum.StrEnum):
    """How bad it is. Notes do not make the exit status 1."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Finding(msgspec.Struct, frozen=True):
    """`check` names the examination, `subject` the object, `problem` what is wrong, `advice` what to do about it."""

    severity: Severity
    check: str
    subject: str
    problem: str
    advice: str = ""


def is_trouble(finding: Finding) -> bool:
    """Whether a finding makes `hami doctor` end with 1: notes do not."""
    return finding.severity is not Severity.NOTE


_ORDER = list(Severity)


def ranked(findings: list[Finding]) -> list[Finding]:
    """The worst first, then by check and subject."""
    return sorted(findings, key=lambda each: (_ORDER.index(each.severity), each.check, each.subject, each.problem))
