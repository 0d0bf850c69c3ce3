"""`/filter` with ResourceQuota objects against the reference, over random worlds (spec/scheduler 3.4, 4.6)."""

from __future__ import annotations

import os
from random import Random

import pytest

from tests.bench.oracle import differences
from tests.reference.subject import Subject, typed_quotas, without_numbers
from tests.reference.worlds import World, build

BLOCKS = 100 if os.environ.get("HAMI_SOAK") else 6


async def different(world: World, *, know_quotas: bool = True) -> list[str]:
    subject = await Subject.of(world)
    if know_quotas:
        subject.placement.quotas.replace(typed_quotas(world.quotas))
    for pod in world.asking:
        reference = world.decide(pod)
        found = differences(without_numbers(subject.decide(pod, world.names)), reference)
        if found:
            return [f"{pod['metadata']['name']}: {text}" for text in found]
        world.hold(pod, reference, bound=False)
    return []


@pytest.mark.parametrize("block", range(BLOCKS))
async def test_filter_with_quotas(block: int) -> None:
    first = block * 40
    found = {seed: await different(build(Random(seed))) for seed in range(first, first + 40)}
    assert {seed: texts for seed, texts in found.items() if texts} == {}


async def test_control_quotas_do_decide_in_these_worlds() -> None:
    found = [await different(build(Random(seed)), know_quotas=False) for seed in range(60)]
    assert sum(bool(texts) for texts in found) > 5
