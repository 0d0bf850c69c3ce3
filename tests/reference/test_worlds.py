"""Random worlds: the reference itself never over-allocates, is deterministic, and the worlds hold every rule."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings

from tests.reference.strategies import worlds
from tests.reference.totals import over_allocated
from tests.reference.worlds import World, build


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_reference_never_over_allocates(world: World) -> None:
    assert over_allocated(world) == []
    for pod in world.asking:
        world.hold(pod, world.decide(pod))
    assert over_allocated(world) == []


def test_control_two_pods_on_the_same_full_card_are_seen() -> None:
    """Negative control: the check above fails when a pod is counted that was never decided."""
    world = next(world for world in (build(Random(seed)) for seed in range(99)) if world.pods)
    world.pods = [{**pod, "metadata": {**pod["metadata"], "uid": str(i)}} for pod in world.pods for i in range(99)]
    assert over_allocated(world) != []


def test_same_seed_same_world_and_answer() -> None:
    for seed in range(20):
        one, two = build(Random(seed)), build(Random(seed))
        assert one == two
        assert [one.decide(pod) for pod in one.asking] == [two.decide(pod) for pod in two.asking]


def test_order_of_nodes_and_pods_does_not_matter() -> None:
    for seed in range(30):
        world = build(Random(seed))
        answers = [world.decide(pod) for pod in world.asking]
        world.nodes.reverse()
        world.pods.reverse()
        assert [world.decide(pod).annotations for pod in world.asking] == [answer.annotations for answer in answers]


def test_worlds_reach_every_reason() -> None:
    """A few hundred worlds must meet all codes, several fitting nodes and several devices."""
    seen: Counter[str] = Counter()
    for seed in range(400):
        world = build(Random(seed))
        for pod in world.asking:
            decision = world.decide(pod)
            seen["fit" if decision.node else "no fit"] += 1
            seen["several nodes"] += len(decision.scores) > 1
            for text in decision.failed.values():
                seen.update(part.split(" ", 1)[1] if "/" in part else part for part in text.split(", "))
    expected = {
        "CardTypeMismatch", "CardUuidMismatch", "CardTimeSlicingExhausted", "CardComputeUnitsExhausted",
        "CardInsufficientMemory", "CardInsufficientCore", "CardNotHealth", "CardCordoned", "NumaNotFit",
        "ExclusiveDeviceAllocateConflict", "CardMigTopologyInfeasible", "NodeInsufficientDevice",
        "AllocatedCardsInsufficientRequest", "ResourceQuotaNotFit", "node unregistered", "AllocationUndecodable",
        "fit", "no fit", "several nodes",
    }  # fmt: skip
    assert {key for key, count in seen.items() if count} >= expected
