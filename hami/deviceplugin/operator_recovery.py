"""An operator's word that cards may be used again: an annotation on the node, taken off when it is done (issue 7).

`kubectl annotate node NODE hami.io/card-recovered=GPU-…,GPU-…`, or `all`.
"""

from __future__ import annotations

from typing import Final, Protocol

from hami.core.objects import Node
from hami.deviceplugin import event_reasons
from hami.kube.writer import KubeWriter
from hami.placement.ports import EventSink
from hami.vendors.nvidia.names import RECOVERED_KEY

ALL: Final = "all"


class Forgiver(Protocol):
    """Who remembers errors of cards."""

    async def forgive(self, cards: frozenset[str] | None) -> frozenset[str] | None:
        """Forgets errors of these cards, None for all; which had any. None if an operator's word does not count."""


class OperatorRecovery:
    """Fed with each look at the node."""

    def __init__(self, writer: KubeWriter, events: EventSink, forgiver: Forgiver) -> None:
        self._writer = writer
        self._events = events
        self._forgiver = forgiver

    async def observe(self, node: Node) -> Node:
        """Does what the annotation asks for and takes it off. Raises ApiError and TransportError."""
        text = node.annotations.get(RECOVERED_KEY)
        if text is None:
            return node
        words = frozenset(word.strip() for word in text.split(",") if word.strip())
        forgiven = await self._forgiver.forgive(None if ALL in words else words)
        self._say(node.name, text, words, forgiven)
        return await self._writer.patch_node_annotations(node.name, {RECOVERED_KEY: None})

    def _say(self, node: str, text: str, words: frozenset[str], forgiven: frozenset[str] | None) -> None:
        if forgiven is None:
            problem = "an operator's word does not count here (--card-recovery)"
        elif missing := sorted(words - {ALL} - forgiven):
            problem = f"no errors were held against {', '.join(missing)}"
        else:
            return
        message = f"{RECOVERED_KEY}: {text!r}: {problem}"
        self._events.node_event(node, warning=True, reason=event_reasons.RECOVERY_REFUSED, message=message)
