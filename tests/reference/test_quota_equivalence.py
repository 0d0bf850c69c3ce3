"""Quotas inside the evaluator (spec/scheduler 4.6, check 8): `core.fit` against the reference, node by node.

Placement does not read ResourceQuota objects yet, so the room that is left comes from the reference's own sums.
"""

from __future__ import annotations

from random import Random

import pytest

from hami.core.allocation import encode_allocation
from hami.core.device_type import Refusal
from hami.core.fit import Fit, QuotaRoom, evaluate
from hami.core.model import Policies, Use
from hami.core.request import pod_request
from tests.reference.model import Object
from tests.reference.objects import namespace_of, words
from tests.reference.quota import quota_of
from tests.reference.subject import Subject, typed_pod
from tests.reference.worlds import World, build


def room_of(world: World, pod: Object) -> QuotaRoom:
    """The quota test that the evaluator is given."""
    quota = quota_of(namespace_of(pod), world.quotas, world.pods, world.config)

    def room(_: str, use: Use) -> bool:
        mem, cores = quota.used_mem + use.memory_mib, quota.used_cores + use.core_percent
        fits_mem = quota.mem_limit is None or mem <= quota.mem_limit
        if quota.count_limit is not None and quota.used_cards + use.slots > quota.count_limit:
            return False
        return fits_mem and (quota.cores_limit is None or cores <= quota.cores_limit)

    return room


async def different(world: World) -> list[str]:
    subject = await Subject.of(world)
    subject.placement.settle_now()
    config = world.config
    policies = Policies(node=config.node_policy, device=tuple(words(config.gpu_policy)))
    found = []
    for pod in world.asking:
        request = pod_request(typed_pod(pod), subject.registry, policies)
        assert not isinstance(request, Refusal)
        for name in world.names if request.asks_for_devices else ():
            view = subject.placement.view(name)
            if view is None or view.problem:
                continue
            reference = world.decide(pod, [name])
            ours = evaluate(view.state, request, subject.registry, room_of(world, pod))
            if isinstance(ours, Fit):
                expected = {key: text for key, text in reference.annotations.items() if "-devices-" in key}
                same = encode_allocation(ours.allocation, subject.registry) == expected
            else:
                same = ours.text == reference.failed.get(name)
            if not same:
                found.append(f"{pod['metadata']['name']} on {name}: ours {ours}, reference {reference}")
    return found


@pytest.mark.parametrize("block", range(6))
async def test_quota_in_the_evaluator(block: int) -> None:
    first = block * 40
    found = {seed: await different(build(Random(seed))) for seed in range(first, first + 40)}
    assert {seed: texts for seed, texts in found.items() if texts} == {}


async def test_control_without_the_quota_the_answers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: an evaluator that is told there is always room disagrees."""
    monkeypatch.setattr(f"{__name__}.room_of", lambda world, pod: lambda _, use: True)
    seen = [await different(build(Random(seed))) for seed in range(40)]
    assert any(seen)
