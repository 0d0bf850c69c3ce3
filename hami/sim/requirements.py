"""One requirement of a label selector or of node affinity (k8s.io/apimachinery labels.Requirement)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def holds(labels: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    """Whether labels meet it. `Gt` and `Lt`, which only nodes have, compare whole numbers."""
    have = labels.get(key)
    if operator == "Exists":
        return have is not None
    if operator == "DoesNotExist":
        return have is None
    if operator in ("In", "NotIn"):
        return (have in values) == (operator == "In")
    if operator not in ("Gt", "Lt") or have is None or not have.lstrip("-").isdigit():
        return False
    return int(have) > int(values[0]) if operator == "Gt" else int(have) < int(values[0])
