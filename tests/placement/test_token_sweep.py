"""Tokens that nobody takes away: gone after two looks where the owner's state says so, left in all other cases."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from hami.core import keys
from hami.core.errors import ApiError
from hami.core.objects import Pod
from hami.core.token import encode_token
from hami.placement.token_sweep import TokenSweep
from tests.placement.fake_api import FakeApi
from tests.placement.fakes import (
    START_UNIX_S,
    FakeClock,
    annotated,
    deleted,
    make_node,
    make_pod,
    make_world,
    with_phase,
)

TEXT = "GPU-0,NVIDIA,1000,10:;"
OWNED = encode_token("default", "owner", START_UNIX_S)


def served() -> Pod:
    return annotated(make_pod("owner"), "n1", TEXT, phase=keys.PHASE_SUCCESS)


CASES: dict[str, tuple[str, Callable[[], Pod | None], bool]] = {
    "owner is gone": (OWNED, lambda: None, True),
    "owner is served": (OWNED, served, True),
    "owner failed to be served": (
        OWNED,
        lambda: annotated(make_pod("owner"), "n1", TEXT, phase=keys.PHASE_FAILED),
        True,
    ),
    "owner has ended": (OWNED, lambda: with_phase(served(), "Succeeded"), True),
    "owner is bound elsewhere": (OWNED, lambda: annotated(make_pod("owner"), "n2", TEXT), True),
    "owner is deleted, unbound": (OWNED, lambda: deleted(make_pod("owner")), True),
    "owner waits": (OWNED, lambda: make_pod("owner"), False),
    "owner is bound and not served": (
        OWNED,
        lambda: annotated(make_pod("owner"), "n1", TEXT, phase=keys.PHASE_ALLOCATING),
        False,
    ),
    "no owner, young": (encode_token("a", "b", START_UNIX_S + 300).partition(",")[0], lambda: None, False),
    "no owner, old": (encode_token("a", "b", START_UNIX_S - 300).partition(",")[0], lambda: None, True),
    "unreadable": ("nonsense", lambda: None, True),
}


class Setup:
    def __init__(self, lock: str, owner: Pod | None, *, leads: bool = True) -> None:
        self.clock = FakeClock()
        self.world = make_world(self.clock)
        self.api = FakeApi(self.world)
        self.api.put_node(make_node("n1", lock=lock))
        if owner is not None:
            self.api.put_pod(owner)
        self.sweep = TokenSweep(self.world, self.api, 300.0, lambda: leads)

    def lock(self) -> str | None:
        return self.api.nodes["n1"].annotations.get(keys.NODE_LOCK)


@pytest.mark.parametrize("name", CASES)
async def test_what_nobody_will_take_away_goes_after_two_looks(name: str) -> None:
    lock, owner, goes = CASES[name]
    setup = Setup(lock, owner())
    assert await setup.sweep.sweep() == []
    assert setup.lock() == lock
    setup.clock.advance(400)
    assert await setup.sweep.sweep() == (["n1"] if goes else [])
    assert (setup.lock() is None) is goes


async def test_a_token_that_changed_between_two_looks_is_left() -> None:
    setup = Setup(OWNED, None)
    await setup.sweep.sweep()
    other = encode_token("default", "another", START_UNIX_S)
    node = make_node("n1", lock=other, version=2)
    setup.api.put_node(node)
    assert await setup.sweep.sweep() == []
    assert setup.lock() == other


async def test_a_token_that_changed_behind_the_watch_is_left() -> None:
    setup = Setup(OWNED, None)
    await setup.sweep.sweep()
    other = encode_token("default", "another", START_UNIX_S)
    unseen = setup.api.nodes["n1"]
    meta = msgspec.structs.replace(unseen.metadata, annotations={**unseen.annotations, keys.NODE_LOCK: other})
    setup.api.nodes["n1"] = msgspec.structs.replace(unseen, metadata=meta)
    assert await setup.sweep.sweep() == []
    assert setup.lock() == other


async def test_an_owner_that_cannot_be_read_leaves_the_other_tokens_to_be_looked_at() -> None:
    setup = Setup(OWNED, None)
    setup.api.put_node(make_node("n2", lock=encode_token("default", "gone", START_UNIX_S)))
    whole = setup.api.get_pod

    async def refused(namespace: str, name: str) -> Pod:
        if name == "owner":
            raise ApiError(403, "Forbidden", "pods is forbidden")
        return await whole(namespace, name)

    setup.api.get_pod = refused  # type: ignore[method-assign]
    await setup.sweep.sweep()
    assert await setup.sweep.sweep() == ["n2"]
    assert setup.lock() == OWNED


async def test_a_follower_takes_nothing() -> None:
    setup = Setup(OWNED, None, leads=False)
    for _ in range(3):
        assert await setup.sweep.sweep() == []
    assert setup.lock() == OWNED
