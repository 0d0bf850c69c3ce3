"""Two schedulers at work at once: whoever frees a left-over token knows which Binding could still follow it (ADR 0004).

`n1` has one card with room for one pod. `old` has taken the token for pod `p` and is about to bind; `new` leads now
and wants the node for pod `q`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from hami.core import keys
from hami.core.errors import TransportError
from hami.core.token import BindEpoch, encode_epoch, parse_epoch
from hami.placement.bind import Binder, BindSettings
from hami.placement.claims import ClaimState
from hami.placement.engine import Engine
from hami.placement.in_flight import BindCall
from hami.placement.names import NodeNames
from hami.placement.node_token import HeldToken, TokenKeeper
from hami.placement.reservations import OLD_S, ReservationCheck
from tests.placement.fake_api import FakeApi, FakeEvents
from tests.placement.fakes import FakeClock, card, container, make_node, make_pod, make_world

HALF = container(memory_mib=10000)
Hook = Callable[[], Awaitable[Any]]


class Api(FakeApi):
    """One API server, two watches."""

    def __init__(self) -> None:
        super().__init__()
        self.worlds: list[Any] = []

    def put_node(self, node: Any) -> Any:
        node = super().put_node(node)
        for world in self.worlds:
            world.on_node(node)
        return node

    def put_pod(self, pod: Any) -> Any:
        pod = super().put_pod(pod)
        for world in self.worlds:
            world.on_pod(pod)
        return pod


class Replica:
    """One scheduler."""

    def __init__(self, name: str, api: Api, wait_s: float = 0.5) -> None:
        self.clock = FakeClock()
        self.clock.real = True
        self.world = make_world(self.clock)
        self.writer = Hooked(api)
        self.engine = Engine(self.world)
        settings = BindSettings(name, wait_s=wait_s, retry_pause_s=0.001)
        self.binder = Binder(self.world, self.writer, FakeEvents(), self.clock, settings)
        api.worlds.append(self.world)

    def filter(self, pod: Any) -> None:
        assert self.engine.filter(pod, NodeNames.of(["n1"])).node == "n1"

    async def bind(self, name: str) -> str:
        return await self.binder.bind("default", name, f"uid-{name}", "n1")


class Hooked:
    """The API server as one scheduler reaches it: a hook may run before or after a call, once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self.before: dict[str, Hook] = {}
        self.after: dict[str, Hook] = {}

    def __getattr__(self, verb: str) -> Any:
        async def call(*arguments: Any, **named: Any) -> Any:
            if (hook := self.before.pop(verb, None)) is not None:
                await hook()
            answer = await getattr(self._api, verb)(*arguments, **named)
            if (hook := self.after.pop(verb, None)) is not None:
                await hook()
            return answer

        return call


class Pair:
    """Both schedulers, pod p reserved by the old one."""

    def __init__(self) -> None:
        self.api = Api()
        self.old, self.new = Replica("old", self.api), Replica("new", self.api)
        self.api.put_node(make_node("n1", [card(0, slots=10, memory_mib=16384)]))
        self.p = self.api.put_pod(make_pod("p", HALF))
        self.q = self.api.put_pod(make_pod("q", HALF))
        self.old.filter(self.p)

    async def new_takes_over(self) -> str:
        """The other scheduler leads and binds q where p was reserved: it knows of no reservation of p."""
        self.new.binder.new_term()
        self.new.filter(self.q)
        return await self.new.bind("q")

    def touch_p(self) -> None:
        self.api._merge_pod(self.api.pod("p"), {"example.com/note": "written by somebody"})

    @property
    def bound(self) -> list[str]:
        return sorted(pod.metadata.name for pod in self.api.pods.values() if pod.spec.node_name)


@pytest.fixture
def pair() -> Pair:
    return Pair()


async def test_the_version_that_the_binding_asks_for_stands_beside_the_token(pair: Pair) -> None:
    version = pair.p.metadata.resource_version
    pair.api.hooks["bind", "before"] = lambda: seen.append(pair.api.nodes["n1"].annotations[keys.BIND_EPOCH])
    seen: list[str] = []
    assert await pair.old.bind("p") == ""
    epoch = parse_epoch(seen[0])
    assert (epoch.leader.partition("/")[0], epoch.uid, epoch.pod_version) == ("old", "uid-p", version)
    assert epoch.belongs_to(pair.api.lock("n1"))


async def test_a_token_whose_binding_may_come_is_kept(pair: Pair) -> None:
    answers: list[str] = []

    async def meanwhile() -> None:
        answers.append(await pair.new_takes_over())

    pair.old.writer.before["bind"] = meanwhile
    assert await pair.old.bind("p") == ""
    assert "node lock contention" in answers[0]
    assert pair.bound == ["p"]


async def test_without_that_comparison_the_card_is_given_twice(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test before."""

    async def meanwhile() -> None:
        assert await pair.new_takes_over() == ""

    monkeypatch.setattr(BindEpoch, "is_past", lambda *_: True)
    pair.old.writer.before["bind"] = meanwhile
    assert await pair.old.bind("p") == ""
    assert pair.bound == ["p", "q"]


async def test_a_token_whose_owner_was_written_since_is_free_and_the_late_binding_fails(pair: Pair) -> None:
    async def meanwhile() -> None:
        pair.touch_p()
        assert await pair.new_takes_over() == ""

    pair.old.writer.before["bind"] = meanwhile
    assert "taken over" in await pair.old.bind("p")
    assert pair.bound == ["q"]


async def test_the_window_between_look_and_write_is_closed(pair: Pair) -> None:
    """The old scheduler's Binding met a conflict, it has read pod and token again; then the new one takes the token."""

    async def conflict() -> None:
        pair.touch_p()

    async def meanwhile() -> None:
        assert await pair.new_takes_over() == ""

    pair.old.writer.before["bind"] = conflict
    pair.old.writer.after["get_node"] = meanwhile
    assert "taken over" in await pair.old.bind("p")
    assert pair.bound == ["q"]


async def test_without_that_write_the_card_is_given_twice(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the test before."""

    async def look_only(self: TokenKeeper, call: BindCall, held: HeldToken, pod_version: str) -> HeldToken:
        assert self._wrote(await self._writer.get_node(call.node), held.text) or pair.bound == ["q"]
        return msgspec.structs.replace(held, pod_version=pod_version)

    async def conflict() -> None:
        pair.touch_p()

    async def meanwhile() -> None:
        assert await pair.new_takes_over() == ""

    monkeypatch.setattr(TokenKeeper, "renew", look_only)
    pair.old.writer.before["bind"] = conflict
    pair.old.writer.after["get_node"] = meanwhile
    assert await pair.old.bind("p") == ""
    assert pair.bound == ["p", "q"]


async def test_the_new_version_is_written_before_the_next_binding(pair: Pair) -> None:
    """The other order: the old one was first, so the new one sees a Binding that may come, and waits."""
    answers: list[str] = []

    async def conflict() -> None:
        pair.touch_p()
        pair.old.writer.before["bind"] = meanwhile

    async def meanwhile() -> None:
        answers.append(await pair.new_takes_over())

    pair.old.writer.before["bind"] = conflict
    assert await pair.old.bind("p") == ""
    assert "node lock contention" in answers[0]
    assert pair.bound == ["p"]


async def test_the_new_leader_binds_the_same_pod_and_one_binding_wins(pair: Pair) -> None:
    async def meanwhile() -> None:
        pair.new.binder.new_term()
        pair.new.filter(pair.p)
        assert await pair.new.bind("p") == ""

    pair.old.writer.before["bind"] = meanwhile
    answer = await pair.old.bind("p")
    assert answer == "" or "not by this call" in answer, "the same second writes the same record"
    assert pair.bound == ["p"]
    assert pair.api.count("bind") == 2


async def test_a_bind_that_took_its_own_left_over_token_and_failed_leaves_it(pair: Pair) -> None:
    """The earlier Binding may still come, so others have to wait for it as before."""
    answers: list[str] = []

    async def meanwhile() -> None:
        pair.new.binder.new_term()
        pair.new.filter(pair.p)
        pair.new.writer.before["list_pods_on_node"] = broken
        answers.append(await pair.new.bind("p"))
        pair.new.world.ledger.end_reservation("uid-p")
        answers.append(await pair.new_takes_over())

    async def broken() -> None:
        raise TransportError("no list")

    pair.old.writer.before["bind"] = meanwhile
    # The new leader wrote the node meanwhile, which the old one need not know: its Binding was prepared before.
    assert await pair.old.bind("p") == ""
    assert answers[0] == "no list"
    assert "node lock contention" in answers[1]
    assert pair.bound == ["p"]


@pytest.mark.parametrize(
    ("text", "belongs"),
    [
        ("old/1.0,2027-01-15T08:00:00Z,uid-p,7", True),
        ("old/1.0,2027-01-15T08:00:01Z,uid-p,7", False),
        ("old/1.0", False),
        ("", False),
        ("old/1.0,2027-01-15T08:00:00Z,uid-p,", False),
        ("a,b,c", False),
        ("a,2027-01-15T08:00:00Z,c,d,e", False),
    ],
)
def test_epochs_of_any_release_are_read(text: str, belongs: bool) -> None:
    epoch = parse_epoch(text)
    assert epoch.belongs_to("2027-01-15T08:00:00Z,default,p") is belongs
    assert epoch.leader == text.partition(",")[0]
    if belongs:
        assert encode_epoch(epoch) == text


@pytest.mark.parametrize(
    ("uid", "version", "past"),
    [("uid-p", "7", False), ("uid-p", "6", False), ("uid-p", "8", True), ("other", "7", True), ("uid-p", "odd", False)],
)
def test_what_makes_a_binding_impossible(uid: str, version: str, past: bool) -> None:
    owner = make_pod("p", uid=uid)
    owner = msgspec.structs.replace(owner, metadata=msgspec.structs.replace(owner.metadata, resource_version=version))
    assert BindEpoch("old/1.0", "t", "uid-p", "7").is_past(owner) is past


async def test_a_watch_that_is_late_does_not_hold_up_the_next_pod(pair: Pair) -> None:
    """The plugin has long served p, but the watch has not even shown the Binding."""
    pair.api.worlds.clear()
    replica = pair.old
    small = pair.api.put_pod(make_pod("small", container(memory_mib=100)))
    replica.world.on_pod(small)
    replica.filter(small)
    assert await replica.bind("p") == ""
    pair.api.serve("default", "p")
    replica.binder._settings = msgspec.structs.replace(replica.binder._settings, wait_s=120.0)
    assert await asyncio.wait_for(replica.bind("small"), 60) == ""


async def test_a_reservation_of_a_pod_that_is_gone_ends_by_a_look(pair: Pair) -> None:
    world, clock = pair.old.world, pair.old.clock
    check = ReservationCheck(world, pair.api)
    del pair.api.pods["default", "p"]
    await check.check()
    assert world.ledger.get("uid-p") is not None, "too young for a look"
    assert pair.api.count("get_pod") == 0
    clock.advance(OLD_S + 1)
    pair.api.faults["get_pod", "before"] = [TransportError("later")]
    await check.check()
    assert world.ledger.get("uid-p") is not None, "what cannot be read stays"
    await check.check()
    assert pair.api.count("get_pod") == 1, "each once in a minute"
    clock.advance(OLD_S + 1)
    await check.check()
    assert world.ledger.get("uid-p") is None


async def test_a_reservation_ends_where_another_pod_has_the_name_and_stays_where_the_pod_waits(pair: Pair) -> None:
    world = pair.old.world
    pair.api.put_node(make_node("n1", [card(0, memory_mib=32768)]))
    pair.old.filter(pair.q)
    pair.api.worlds.clear()
    pair.api.put_pod(make_pod("p", HALF, uid="another"))
    pair.old.clock.advance(OLD_S + 1)
    await ReservationCheck(world, pair.api).check()
    assert world.ledger.get("uid-p") is None
    claim = world.ledger.get("uid-q")
    assert claim is not None
    assert claim.state is ClaimState.RESERVED


def test_a_pod_that_is_read_late_does_not_take_its_successors_place(pair: Pair) -> None:
    """A read that was answered late shows a pod whose name another one has meanwhile."""
    api, world = pair.api, pair.old.world
    late = api.pod("p")
    world.on_pod_deleted("default", "p", "uid-p")
    world._gone.discard("uid-p")
    successor = api.put_pod(make_pod("p", HALF, uid="successor"))
    pair.old.filter(successor)
    before = dict(world.ledger.uses("n1"))
    assert before
    world.on_pod(late)
    assert dict(world.ledger.uses("n1")) == before
