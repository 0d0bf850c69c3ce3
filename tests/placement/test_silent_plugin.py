"""A device plugin that never answers, or answers after the token has expired (issue 6; reports B64, B76; HAMi#1130).

Two nodes with room for four pods each, in virtual time. The plugin of `n0`, where binpack sends everybody first, is
silent; that of `n1` serves at once. Tokens expire after 60 s here (`--node-lock-timeout`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from hami.core import keys
from hami.placement.stalled import Stalled
from tests.placement import histories
from tests.placement.fakes import container, make_pod, with_phase
from tests.placement.virtual import VirtualLoop

EXPIRY_S = 60.0
SILENT, SOUND = "n0", "n1"


class Quiet(histories.History):
    """No faults but the silent plugin."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__(loop, seed=1)
        self._quiet, self.fault_rate = True, 0.0
        self.told: list[str] = []
        self.bound_at_s: dict[str, float] = {}

    def give_up(self, uid: str, name: str, why: str) -> None:
        self.told.append(why)
        super().give_up(uid, name, why)

    def create(self, *names: str) -> None:
        for name in names:
            self.server.put_pod(make_pod(name, container(memory_mib=4900), uid=f"uid-{name}"))

    async def until(self, condition: Callable[[], object], limit_s: float) -> None:
        ends_s = self.loop.time() + limit_s
        while not condition():
            self.raise_failure()
            assert self.loop.time() < ends_s, f"not within {limit_s} s: {self.waiting()}"
            await asyncio.sleep(0.1)
            for (_, name), pod in self.server.pods.items():
                if pod.spec.node_name:
                    self.bound_at_s.setdefault(name, self.loop.time())

    def bound(self, *names: str) -> bool:
        return all(self.server.pod(name).spec.node_name for name in names)

    def served(self, *names: str) -> bool:
        return all(self.server.pod(name).annotations.get(keys.BIND_PHASE) == keys.PHASE_SUCCESS for name in names)

    def on(self, node: str) -> set[str]:
        return {name for (_, name), pod in self.server.pods.items() if pod.spec.node_name == node}


def play(story: Callable[[Quiet], Awaitable[None]]) -> None:
    loop = VirtualLoop()

    async def run() -> None:
        history = Quiet(loop)
        helper = asyncio.ensure_future(history.serve(SOUND))
        history.watch_over(helper)
        await history.lead(history.leader)
        try:
            history.create("first")
            await history.until(lambda: history.bound("first"), 5)
            assert history.on(SILENT) == {"first"}
            await story(history)
        finally:
            helper.cancel()
            for replica in history.replicas:
                await replica.kill()
            await asyncio.gather(helper, *history.on_the_way, return_exceptions=True)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())


async def others_run_elsewhere(history: Quiet) -> None:
    """One bind each may wait for the token in vain; the next choice is the other node."""
    for name in ("b", "c", "d", "e"):
        history.create(name)
        await history.until(lambda name=name: history.served(name), 15)  # type: ignore[misc]
    assert history.on(SOUND) == {"b", "c", "d", "e"}
    assert history.leader.world.stalled.nodes == {SILENT}
    assert len(history.told) == 1
    assert "node lock contention (held by " in history.told[0]
    assert history.told[0].endswith(",default,first)")


def test_pods_with_another_node_to_go_to_run_there() -> None:
    play(others_run_elsewhere)


def test_without_the_memory_of_it_they_wait_for_the_silent_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(Stalled, "gave_up", lambda *_: None)
    with pytest.raises(AssertionError, match="not within 15 s"):
        play(others_run_elsewhere)


def test_where_nothing_else_fits_they_get_the_turn_of_an_owner_that_was_not_served_in_time() -> None:
    async def story(history: Quiet) -> None:
        first_s = history.bound_at_s["first"]
        history.create("b", "c", "d", "e", "f", "g")
        await history.until(lambda: history.bound("b", "c", "d", "e", "f", "g"), 4 * EXPIRY_S)
        late = sorted(history.bound_at_s[name] - first_s for name in history.on(SILENT) - {"first"})
        assert len(history.on(SOUND)) == 4
        assert [int((at_s + 1) // EXPIRY_S) for at_s in late] == [1, 2]
        assert not history.served("first")

    play(story)


def test_a_plugin_that_answers_again_takes_its_node_back_into_the_choice() -> None:
    async def story(history: Quiet) -> None:
        history.create("b")
        await history.until(lambda: history.served("b"), 15)
        assert history.leader.world.stalled.nodes == {SILENT}
        helper = asyncio.ensure_future(history.serve(SILENT))
        try:
            await history.until(lambda: history.served("first"), 5)
            await history.until(lambda: not history.leader.world.stalled.nodes, 5)
            history.create("c", "d", "e")
            await history.until(lambda: history.served("c", "d", "e"), 15)
            assert history.on(SOUND) | history.on(SILENT) == {"first", "b", "c", "d", "e"}
        finally:
            helper.cancel()

    play(story)


@pytest.mark.parametrize("end", ["deleted", "failed", "node deleted"])
def test_the_node_comes_back_by_facts(end: str) -> None:
    async def story(history: Quiet) -> None:
        history.create("b")
        await history.until(lambda: history.served("b"), 15)
        world = history.leader.world
        match end:
            case "deleted":
                history.server.delete_pod("default", "first")
            case "failed":
                first = history.server._merge_pod(history.server.pod("first"), {keys.BIND_PHASE: keys.PHASE_FAILED})
                history.server.put_pod(with_phase(first, "Failed"))
            case "node deleted":
                world.on_node_deleted(SILENT)
                assert world.stalled.nodes == set()
                return
        # The token is nobody's now. A bind that comes by takes it at once, though the node is still tried last.
        history.create("c", "d", "e", "f")
        await history.until(lambda: history.bound("c", "d", "e", "f"), 15)
        assert len(history.on(SILENT) - {"first"}) == 1

    play(story)
