"""One node at one revision, as decisions and people see it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import msgspec

from hami.core.model import NodeState
from hami.core.reasons import NODE_UNREGISTERED
from hami.placement.inventory import CardsView


class NodeView(msgspec.Struct, frozen=True, gc=False):
    """One node at one revision. `problem` says why it takes no new shares; empty if it may take some."""

    state: NodeState
    problem: str
    revision: int
    hardware: int
    """Number of the card set; nodes with the same number differ in card ids only."""
    unknown_ids: tuple[str, ...] = ()
    """Card ids that pods hold and the node does not register."""

    def likeness(self) -> Hashable:
        """Equal for nodes that refuse the same requests for the same reasons, as long as no card is asked by id."""
        state = self.state
        cordoned = tuple(device.id in state.cordoned for device in state.devices) if state.cordoned else ()
        taken = tuple(state.mig_taken.get(device.id, ()) for device in state.devices) if state.mig_taken else ()
        return (self.hardware, state.uses, cordoned, taken)


def may_take_more(before: NodeState, now: NodeState) -> bool:
    """Whether cards changed in themselves, or anything that was taken is free."""
    if before.devices is not now.devices or before.cordoned != now.cordoned:
        return True
    return any(
        new.slots < old.slots or new.memory_mib < old.memory_mib or new.core_percent < old.core_percent
        for old, new in zip(before.uses, now.uses, strict=True)
    )


def unknown_ids(cards: CardsView, uses: Iterable[str]) -> tuple[str, ...]:
    """Ids in use that no registered card has, sorted; none while the node has no cards at all."""
    if not cards.devices:
        return ()
    registered = {device.id for device in cards.devices}
    return tuple(sorted(device for device in uses if device not in registered))


def unregistered_text(view: NodeView | None) -> str:
    """Per-node text for a node that the evaluator is not asked about."""
    return view.problem if view is not None else NODE_UNREGISTERED
