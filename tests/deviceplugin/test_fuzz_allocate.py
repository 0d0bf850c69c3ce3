"""7,000 random Allocate calls in CI (`make soak`: ten times that): refusals are clear, no stranger is served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given

from hami.core.codec import decode_shares
from hami.core.errors import AllocateError, DecodeError
from hami.core.keys import BIND_PHASE, PHASE_ALLOCATING, PHASE_FAILED
from hami.core.objects import Pod
from hami.vendors.nvidia.names import TO_ALLOCATE_KEY
from tests.deviceplugin.bench import NODE
from tests.deviceplugin.fuzz_pods import pods_on_a_node, requests, tokens
from tests.deviceplugin.fuzz_world import World, cases, check_words


def _segments(waiting: Pod) -> list[Any] | None:
    try:
        return list(decode_shares(waiting.annotations.get(TO_ALLOCATE_KEY, ""), "test"))
    except DecodeError:
        return None


def _may_be_served(waiting: Pod, count: int) -> bool:
    here = waiting.spec.node_name == NODE and waiting.status.phase in ("", "Pending")
    found = _segments(waiting)
    return (
        here
        and waiting.annotations.get(BIND_PHASE) == PHASE_ALLOCATING
        and found is not None
        and any(len(shares) == count for shares in found if shares)
    )


def _expected(pods: Sequence[Pod], token: str | None, count: int) -> str | None:
    """Whom a call for `count` devices is for, written from design 3 alone; None for nobody."""
    able = [each for each in pods if _may_be_served(each, count)]
    for each in able:
        if token is not None and token.endswith(f",default,{each.metadata.name}") and token.count(",") == 2:
            return each.key
    return able[0].key if len(able) == 1 else None


def check_allocate(world: World, pods: tuple[Pod, ...], token: str | None, asked: list[list[str]]) -> None:
    before = {each.key: each for each in pods}
    world.put(list(before.values()), token)
    try:
        answer = world.loop.run_until_complete(world.allocator.allocate(asked))
    except AllocateError as refusal:
        answer = None
        check_words(refusal)
    world.loop.run_until_complete(world.allocator.drain())
    changed = {key for key, each in world.api.pods.items() if each != before[key]}
    assert len(changed) <= 1, "one call concerns one pod"
    if not changed:
        assert answer is None
        return
    (key,) = changed
    after = world.api.pods[key]
    if answer is None:
        assert after.annotations[BIND_PHASE] == PHASE_FAILED
        assert after.annotations.get(TO_ALLOCATE_KEY) == before[key].annotations.get(TO_ALLOCATE_KEY)
        assert [name for name, _, _ in world.events.on_pods] == [after.metadata.name]
    else:
        assert key == _expected(list(before.values()), token, len(asked[0]))
        found = [shares for shares in _segments(before[key]) or [] if shares]
        for edits, wanted in zip(answer, asked, strict=True):
            envs = dict(edits.envs)
            limits = [envs[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"] for index in range(len(wanted))]
            assert f"CUDA_DEVICE_MEMORY_LIMIT_{len(wanted)}" not in envs
            assert limits in [[f"{share.memory_mib}m" for share in shares] for shares in found]
            assert all(f"/{after.metadata.uid}_" in mount.host_path for mount in edits.mounts[1:2])


def test_allocate_serves_whom_it_must_or_refuses_clearly(world: World) -> None:
    @cases(7000)
    @given(pods=pods_on_a_node, token=tokens, asked=requests)
    def run(pods: tuple[Pod, ...], token: str | None, asked: list[list[str]]) -> None:
        check_allocate(world, pods, token, asked)

    run()
    ends = world.allocator.stats
    assert min(ends.served, ends.refused, ends.failed) > 50, f"each end is reached: {ends}"
