"""Nodes whose token does not come free come last in `/filter` (issue 6, "no failed binds").

A device plugin that does not answer holds its node's token until that expires, and the next pod's after it. The next
best node starts the pod sooner.
"""

from __future__ import annotations

from hami.core import keys
from hami.core.objects import Node


class Stalled:
    """Remembers where a bind gave up its wait for a token that nobody has taken off since."""

    __slots__ = ("nodes",)

    def __init__(self) -> None:
        self.nodes: set[str] = set()

    def gave_up(self, node: str) -> None:
        """A bind waited for the node's token in vain."""
        self.nodes.add(node)

    def saw(self, node: Node) -> None:
        """A node without a token: whoever held it was served, or has ended. Another pod's token in its place: that one
        was not served either so far."""
        if node.name in self.nodes and not node.annotations.get(keys.NODE_LOCK):
            self.nodes.discard(node.name)

    def forget(self, node: str) -> None:
        """The node is gone."""
        self.nodes.discard(node)
