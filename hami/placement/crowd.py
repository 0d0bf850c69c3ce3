"""Nodes with a queue of binds that is too long come last in `/filter` (issue 6, "no failed binds").

A turn lasts as long as kubelet and plugin take to serve a pod, and binpack sends one pod after another to one node:
those at the end of a long queue would only time out there. The next best node starts the pod sooner.
"""

from __future__ import annotations

from typing import Final

FIRST_GUESS_S: Final = 0.3
"""How long a turn lasts, until some were seen."""
_WEIGHT: Final = 0.2
"""Of the newest turn in the average."""
_SHORTEST_S: Final = 0.02
_LONGEST_S: Final = 10.0
"""One turn that waited for a silent plugin says little about the next."""
_MOST_NODES: Final = 10_000
"""Nodes come and go under ever new names; what is known of the first ones is forgotten."""
_SHARE: Final = 0.75
"""Of the time that a bind may wait: the average is no promise."""


class Crowd:
    """Knows nodes with long queues, by how long turns last there. Seconds."""

    __slots__ = ("_turn_s", "nodes")

    def __init__(self) -> None:
        self.nodes: set[str] = set()
        """Those whose queue is too long now."""
        self._turn_s: dict[str, float] = {}
        """Average by node: one slow plugin says nothing about the others."""

    def took(self, node: str, turn_s: float) -> None:
        """A turn is over."""
        average_s = self._turn_s.get(node, FIRST_GUESS_S)
        bounded_s = min(max(turn_s, _SHORTEST_S), _LONGEST_S)
        self._turn_s[node] = average_s + _WEIGHT * (bounded_s - average_s)
        if len(self._turn_s) > _MOST_NODES:
            del self._turn_s[next(iter(self._turn_s))]

    def look(self, node: str, waiting: int, wait_s: float) -> None:
        """`waiting` binds are in the node's queue, and one more would wait for at most `wait_s`."""
        if waiting * self._turn_s.get(node, FIRST_GUESS_S) > wait_s * _SHARE:
            self.nodes.add(node)
        else:
            self.nodes.discard(node)
