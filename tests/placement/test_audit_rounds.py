"""When the auditor looks, and that each difference is a log line, an event and a metric (issue 6), in virtual time."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from hami.core.errors import TransportError
from hami.core.model import Use
from hami.obs import metrics
from hami.placement.auditor import Auditor, Difference
from tests.placement.fake_api import FakeEvents
from tests.placement.fakes import annotated, make_node, make_pod, make_world
from tests.placement.listed import Listed
from tests.placement.virtual import SkewedClock, VirtualLoop

ONE = "GPU-0,NVIDIA,1000,10:;"


class Rounds(Auditor):
    """Notes the virtual time of each look, in whole seconds."""

    def __init__(self, loop: VirtualLoop, *, list_fails: bool = False) -> None:
        world = make_world(SkewedClock(loop, 0.0))  # type: ignore[arg-type]  # any clock
        world.on_node(make_node("n1"))
        pod = annotated(make_pod("p"), "n1", ONE)
        world.on_pod(pod)
        self.events = FakeEvents()
        self.books = world.ledger
        self._loop = loop
        self._list_fails = list_fails
        self.looks: dict[str, list[int]] = {"memory": [], "list": []}
        super().__init__(world, Listed(pod), self.events)

    async def check_memory(self) -> list[Difference]:
        self.looks["memory"].append(int(self._loop.time()))
        return await super().check_memory()

    async def check_list(self) -> list[Difference]:
        self.looks["list"].append(int(self._loop.time()))
        if self._list_fails:
            raise TransportError("down")
        return await super().check_list()


def hours(count: float, *, spoil: bool = False, list_fails: bool = False) -> Rounds:
    loop = VirtualLoop()

    async def run() -> Rounds:
        auditor = Rounds(loop, list_fails=list_fails)
        if spoil:
            auditor.books._books["n1"].uses["GPU-0"] = Use(2, 1, 1)
        task = asyncio.ensure_future(auditor.run())
        await asyncio.sleep(count * 3600)
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return auditor

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(run())


@pytest.mark.parametrize("list_fails", [False, True])
def test_memory_each_minute_and_the_list_each_hour_also_after_one_that_failed(list_fails: bool) -> None:
    looks = hours(3.1, list_fails=list_fails).looks
    assert 180 <= len(looks["memory"]) <= 186
    assert max(later - earlier for earlier, later in zip(looks["memory"], looks["memory"][1:], strict=False)) <= 62
    assert [at_s // 3600 for at_s in looks["list"]] == [1, 2, 3]


def test_each_difference_is_told_each_minute_until_it_is_gone_and_stays_as_it_is() -> None:
    with structlog.testing.capture_logs() as logs:
        auditor = hours(0.1, spoil=True)
    told = [each for each in logs if each["event"] == "audit difference"]
    rounds = len(auditor.looks["memory"])
    assert rounds >= 5
    assert len(told) == len(auditor.events.recorded) == rounds
    assert {(each["log_level"], each["source"], each["node"], each["subject"]) for each in told} == {
        ("error", "memory", "n1", "card GPU-0")
    }
    assert "booked Use(slots=2" in told[0]["problem"]
    assert metrics.audit_differences.labels("memory")._value.get() == 1
    assert auditor.books.uses("n1")["GPU-0"] == Use(2, 1, 1)


def test_books_in_order_are_a_metric_only() -> None:
    with structlog.testing.capture_logs() as logs:
        auditor = hours(1.1)
    assert [each for each in logs if each["event"] == "audit difference"] == []
    assert auditor.events.recorded == []
    assert metrics.audit_differences.labels("memory")._value.get() == 0
    assert metrics.audit_differences.labels("list")._value.get() == 0
