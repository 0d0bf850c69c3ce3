"""What a filter decision says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

EventText = tuple[bool, str, str]
"""An event to record on the pod: warning or normal, reason, message."""

NO_NODES: Final[Mapping[str, str]] = {}


def _no_events() -> tuple[EventText, ...]:
    return ()


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class FilterAnswer:
    """Exactly one of: `passthrough` (asks for no devices), `node`, `error`, or reasons in `failed`.

    `failed` and `unresolvable` map node to reason; a refused node is in both, so that kube-scheduler's preemption does
    not try it in vain (design 4). `feasible` is for simulations: the best node first. `events` is worked out only when
    somebody reads it, so that the answer does not wait for it.
    """

    passthrough: bool = False
    node: str | None = None
    failed: Mapping[str, str] = field(default_factory=dict)
    unresolvable: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    feasible: tuple[str, ...] = ()
    narrate: Callable[[], tuple[EventText, ...]] = _no_events
    upkeep: Callable[[], None] = _nothing
    """What the next decision would otherwise have to do first; for when this answer is out."""

    @property
    def events(self) -> tuple[EventText, ...]:
        return self.narrate()
