"""The feedback's rules as tables (spec/node 6.4, test vector 12), and what holds for any state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.monitor.feedback import Activity, Feedback, decide

NOW_S = 1_700_000_000


def on(cards: str, priority: int, recent: int, *, ran_s_ago: int | None = None, busy: bool = False) -> Activity:
    last_s = NOW_S - ran_s_ago if ran_s_ago is not None else 0
    return Activity(frozenset(cards.split()), priority, recent, last_s, busy)


TABLE = {
    "alone: its cores are not limited": ([on("a", 1, 2)], [(1, 0)]),
    "alone and idle": ([on("a", 1, 0)], [(0, 0)]),
    "high and low on one card, both active": ([on("a", 0, 2), on("a", 1, 2)], [(1, 0), (-1, 1)]),
    "then the high one is active no more": ([on("a", 0, 1), on("a", 1, -1)], [(0, 0), (0, 0)]),
    "still waiting while the high one works": ([on("a", 0, 2), on("a", 1, -1)], [(1, 0), (-1, 1)]),
    "the low one does not hold up the high one": ([on("a", 0, 0), on("a", 1, 2)], [(0, 0), (1, 0)]),
    "two of one priority": ([on("a", 1, 2), on("a", 1, 2)], [(1, 1), (1, 1)]),
    "two of one priority, one idle": ([on("a", 1, 2), on("a", 1, 0)], [(1, 0), (0, 0)]),
    "other cards": ([on("a", 0, 2), on("b", 1, 2)], [(1, 0), (1, 0)]),
    "the second card of a container counts as well": ([on("b", 0, 2), on("a b", 1, 2)], [(1, 0), (-1, 1)]),
    "priorities above one": ([on("a", 3, 2), on("a", 7, 2)], [(1, 0), (-1, 1)]),
    "a negative priority is nobody's rival": ([on("a", -4, 2), on("a", 0, 2)], [(1, 0), (1, 0)]),
    "three": ([on("a", 0, 2), on("a", 1, 2), on("a", 1, 2)], [(1, 0), (-1, 1), (-1, 1)]),
    "activity by the time of the last kernel (T-45)": (
        [on("a", 1, 0, ran_s_ago=4), on("a", 1, 2)],
        [(0, 1), (1, 1)],
    ),
    "a kernel long ago does not count": ([on("a", 1, 0, ran_s_ago=60), on("a", 1, 2)], [(0, 0), (1, 0)]),
    "a time in the future does not count": ([on("a", 0, 0, ran_s_ago=-3600), on("a", 1, 2)], [(0, 0), (1, 0)]),
    "without a core limit nothing is told but the time (T-38)": (
        [on("a", 0, 0, ran_s_ago=1), on("a", 1, 2)],
        [(0, 0), (-1, 1)],
    ),
    "activity by samples": ([on("a", 1, 0, busy=True), on("a", 1, 2)], [(0, 1), (1, 1)]),
    "one that waits is not active, though its last kernel was now": (
        [on("a", 1, -1, ran_s_ago=0), on("a", 1, 2)],
        [(0, 0), (1, 0)],
    ),
    "no card yet": ([on("", 1, 2), on("a", 1, 2)], [(1, 0), (1, 0)]),
    "nobody": ([], []),
}


@pytest.mark.parametrize(("containers", "expected"), TABLE.values(), ids=TABLE.keys())
def test_one_tick(containers: list[Activity], expected: list[tuple[int, int]]) -> None:
    assert decide(containers, NOW_S) == [Feedback(*each) for each in expected]


def test_cards_of_a_container_are_one_rival_each() -> None:
    """One container with two cards does not crowd itself."""
    assert decide([on("a b", 1, 2)], NOW_S) == [Feedback(1, 0)]


activities = st.builds(
    Activity,
    cards=st.frozensets(st.sampled_from("abcd"), max_size=3),
    priority=st.integers(-2, 3),
    recent_kernel=st.integers(-(2**31), 2**31 - 1) | st.integers(-1, 2),
    last_kernel_time_s=st.integers(0, 2**64 - 1) | st.integers(NOW_S - 30, NOW_S + 5),
    sm_busy=st.booleans(),
)


@given(st.lists(activities, max_size=6))
def test_what_holds_for_any_state(containers: list[Activity]) -> None:
    told = decide(containers, NOW_S)
    assert len(told) == len(containers)
    for container, feedback in zip(containers, told, strict=True):
        assert feedback.utilization_switch in (0, 1)
        assert -1 <= feedback.recent_kernel <= max(0, container.recent_kernel)
        if feedback.recent_kernel == -1:
            assert feedback.utilization_switch == 1
    # Whoever is first on all its cards goes on.
    for container, feedback in zip(containers, told, strict=True):
        rivals = [each for each in containers if each.cards & container.cards and each.priority >= 0]
        if all(container.priority <= rival.priority for rival in rivals):
            assert feedback.recent_kernel >= 0
