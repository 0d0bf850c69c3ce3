"""Sees that kubelet offers what we list: if not, another plugin registered the same resource (report B94)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from hami.core.objects import Node, Quantity
from hami.core.units import parse_whole
from hami.deviceplugin import event_reasons
from hami.deviceplugin.board import BoardState
from hami.deviceplugin.settings import PluginSettings
from hami.placement.ports import EventSink

_PATIENCE_S: Final = 60.0
"""kubelet writes its node's status within ten seconds; a restart of either side may take longer."""


class OfferCheck:
    """Fed with each look at the node; warns once when the difference has lasted for a minute.

    `foreign`: it has lasted, and kubelet offers somebody's devices under our name: shares cannot be handed out here.
    """

    def __init__(self, settings: PluginSettings, events: EventSink, monotonic_s: Callable[[], float]) -> None:
        self._settings = settings
        self._events = events
        self._monotonic_s = monotonic_s
        self._since_s: float | None = None
        self._said = False
        self.foreign = False

    def observe(self, node: Node, state: BoardState) -> None:
        """Compares the node's allocatable count with the healthy replicas on the board."""
        resource = self._settings.nvidia.resource_count_name
        found = (node.status.allocatable or {}).get(resource, 0)
        listed = sum(state.replicas for card in state.cards if state.healthy(card.uuid))
        listed += sum(state.healthy(device.card.uuid) for device in state.static.get(resource, ()))
        if _number(found) == listed:
            self._since_s = None
            self._said = False
            self.foreign = False
            return
        now_s = self._monotonic_s()
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < _PATIENCE_S:
            return
        self.foreign = _number(found) != 0
        if self._said:
            return
        self._said = True
        self._events.node_event(
            node.name,
            warning=True,
            reason=event_reasons.ALLOCATABLE_DIFFERS,
            message=f"kubelet offers {found} {resource}, this plugin lists {listed}: does another device plugin"
            f" register {resource}, or is kubelet's folder another than {self._settings.kubelet_dir}?",
        )


def _number(quantity: Quantity) -> int | None:
    """What a quantity stands for: kubelet writes 1000 as `1k`. None if it cannot be read."""
    try:
        return parse_whole(quantity)
    except ValueError:
        return None
