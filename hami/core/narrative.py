"""Texts of the events that people read in `kubectl describe pod` (spec/scheduler 4.8, contract 3.5).

Lists of nodes are cut where an event would become too long; the count in front of them stays true.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hami.core.reasons import Reason, Rejection

_LIST_CHARS: Final = 800
"""Room for a list inside a message; the API server takes 1024 characters in all."""


def filtering_failed(rejections: Mapping[str, Rejection | str], requested: int) -> list[str]:
    """One message per reason, sorted by reason, then the summary over all `requested` nodes.

    `rejections` maps a node to its rejection, or to a plain text such as `node unregistered`. Codes that speak of the
    node and not of its cards have no message of their own (spec/scheduler 4.7).
    """
    nodes: dict[Reason, list[str]] = {}
    for node, rejection in rejections.items():
        if isinstance(rejection, Rejection):
            for reason, count in rejection.counts:
                if count:
                    nodes.setdefault(reason, []).append(node)
    messages = [f"{len(nodes[reason])} nodes {reason}({_listed(sorted(nodes[reason]))})" for reason in sorted(nodes)]
    return [*messages, f"no available node, {requested} nodes do not meet"]


def filtering_succeed(
    node: str, scores: Sequence[tuple[str, float]], requested: int, fitting: int | None = None
) -> str:
    """The chosen node, and the fitting ones with their scores in the order given.

    `fitting` is their number where `scores` has only the first of them.
    """
    count = len(scores) if fitting is None else fitting
    listed = _listed((f"{name}:{score:.2f}" for name, score in scores), left_out=count - len(scores))
    return f"find fit node({node}), {requested - count} nodes not fit, {count} nodes fit({listed})"


def binding_succeed(node: str, namespace: str, pod: str) -> str:
    """Text of the event BindingSucceed, upstream's words (spec/scheduler 2.2)."""
    return f"Successfully binding node [{node}] to {namespace}/{pod}"


def binding_failed_node(node: str) -> str:
    """Text of a bind's failure where the node cannot be read, upstream's words."""
    return f"failed to get node {node}"


def _listed(items: Iterable[str], left_out: int = 0) -> str:
    shown: list[str] = []
    length = 0
    for item in items:
        length += len(item) + 1
        if shown and length > _LIST_CHARS:
            left_out += 1
        else:
            shown.append(item)
    return ",".join(shown) + (f",... {left_out} more" if left_out else "")
