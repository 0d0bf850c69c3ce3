"""Who has to wait and whose cores are limited, of the containers that share cards (spec/node 6.4).

Upstream's rules: a lower number is the more important priority. While a container of a more important priority is
active on one of its cards, a container waits before each launch (recent kernel -1); its core limit is in force
(switch 1) then, and while more than one container of its own priority is active on one of its cards.

Differently from upstream a container is active also while its last kernel is a few ticks ago: later libraries tell
their activity by "recent kernel" only while the switch is 1, and the switch would never come back (traps T-38, T-45).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

BLOCKED: Final = -1
ACTIVE_WINDOW_S: Final = 10
"""Two ticks."""


class Activity(NamedTuple):
    """What a container's region says about its work. `sm_busy`: samples of living processes show use of a card."""

    cards: frozenset[str]
    priority: int
    recent_kernel: int
    last_kernel_time_s: int = 0
    sm_busy: bool = False


class Feedback(NamedTuple):
    """What the monitor writes into a region."""

    recent_kernel: int
    utilization_switch: int


def decide(containers: Sequence[Activity], now_s: float) -> list[Feedback]:
    """One tick: the feedback for each container, in the same order."""
    left = [each.recent_kernel - (each.recent_kernel > 0) for each in containers]
    active = Counter(
        (card, each.priority)
        for each, recent in zip(containers, left, strict=True)
        if each.priority >= 0 and _is_active(each, recent, now_s)
        for card in each.cards
    )
    return [_feedback(each, recent, active) for each, recent in zip(containers, left, strict=True)]


def _is_active(container: Activity, left: int, now_s: float) -> bool:
    """A container that waits is not active, whatever it did before."""
    if container.recent_kernel < 0:
        return False
    ran = 0 <= now_s - container.last_kernel_time_s <= ACTIVE_WINDOW_S
    return left > 0 or ran or container.sm_busy


def _feedback(container: Activity, left: int, active: Counter[tuple[str, int]]) -> Feedback:
    outranked = _outranked(container, active)
    crowded = any(active[card, container.priority] > 1 for card in container.cards)
    return Feedback(BLOCKED if outranked else max(left, 0), 1 if outranked or crowded else 0)


def _outranked(container: Activity, active: Iterable[tuple[str, int]]) -> bool:
    return any(card in container.cards and priority < container.priority for card, priority in active)
