"""How often nodes were refused for which reason, by the texts that kube-scheduler is told (spec/contract 3.5)."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from hami.core.reasons import NODE_UNREGISTERED, Reason
from hami.obs import metrics

UNREGISTERED: Final = "NodeUnregistered"
OTHER: Final = "Other"
"""A node that takes no new shares, or a request that no node can be asked for: the text says why."""
_CODES: Final = frozenset(Reason)
_COUNTED: Final = re.compile(r"\d+/\d+ (\w+)")


def count(refused: Mapping[str, str]) -> None:
    """Counts the nodes of one refusal; a node with several reasons counts once for each."""
    for text, nodes in Counter(refused.values()).items():
        for reason in reasons_of(text):
            metrics.refused_nodes.labels(reason).inc(nodes)


@functools.lru_cache(maxsize=1024)
def reasons_of(text: str) -> tuple[str, ...]:
    """Reason codes in a node's text; never empty."""
    if text.startswith(NODE_UNREGISTERED):
        return (UNREGISTERED,)
    words = _COUNTED.findall(text) or [text.partition(":")[0].strip()]
    return tuple(dict.fromkeys(word for word in words if word in _CODES)) or (OTHER,)
