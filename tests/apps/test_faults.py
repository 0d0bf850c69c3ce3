"""The API server at its worst while pods are scheduled: every pod runs, no card is given twice, the books are right."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hami.apps.scheduler import Scheduler
from hami.core import keys
from hami.sim.apiserver.faults import GONE, INTERNAL, LATENCY, LOST_ANSWER, TOO_MANY, Fault
from hami.sim.client import Informer
from tests.apps.outcomes import bound, ours
from tests.apps.rig import Rig, node, pod, rigged

PODS = 24
NODES = 2


@asynccontextmanager
async def busy(folder: Path) -> AsyncIterator[tuple[Rig, Scheduler, Informer]]:
    """A scheduler at work on two nodes of two cards where another one has bound before; plugins answer."""
    async with rigged(folder) as rig:
        for number in range(NODES):
            await rig.cluster.apply(node(f"n{number}", cards=2, **{keys.BIND_EPOCH: "elsewhere/1"}))
        replica = await rig.replica()
        pods = await rig.serve_pods()
        kube_scheduler = await rig.kube_scheduler(replica)
        try:
            yield rig, replica, pods
        finally:
            await kube_scheduler.stop()


async def all_is_well(rig: Rig, replica: Scheduler, pods: Informer, count: int = PODS) -> None:
    await rig.until(lambda: bound(pods) >= count, f"{count} pods bound")
    rig.api.faults.clear()
    assert (await rig.audit()).faults == []
    assert await rig.differences(replica) == []


def some(action: str, verb: str, resource: str, *, after: int = 0, times: int = 5, seconds: float = 1.0) -> Fault:
    """Hits requests of `hami scheduler` only, never those of the plugins' stand-in."""
    return Fault(action, verb, resource, after=after, times=times, seconds=seconds, user_agent="hami/")


FAULTS: dict[str, list[Fault]] = {
    "none": [],
    "token fails": [some(INTERNAL, "patch", "nodes", after=3)],
    "token's answer is lost": [some(LOST_ANSWER, "patch", "nodes", after=3)],
    "binding fails": [some(INTERNAL, "create", "pods/binding", after=3)],
    "binding's answer is lost": [some(LOST_ANSWER, "create", "pods/binding", after=3)],
    "binding is refused for load": [some(TOO_MANY, "create", "pods/binding", after=3)],
    "pod cannot be read": [some(LOST_ANSWER, "create", "pods/binding", times=3), some(INTERNAL, "get", "pods")],
    "node cannot be read": [some(LOST_ANSWER, "patch", "nodes", times=3), some(INTERNAL, "get", "nodes")],
    "list of a strange epoch fails": [some(INTERNAL, "list", "pods", times=3)],
    "everything is slow": [Fault(LATENCY, verb, seconds=0.2) for verb in ("get", "patch", "create")],
    "events fail": [Fault(INTERNAL, "create", "events")],
    "watch cannot begin": [some(GONE, "watch", "pods", times=2), some(INTERNAL, "watch", "nodes", times=2)],
}


@pytest.mark.parametrize("name", FAULTS)
async def test_faults_of_the_api_server(tmp_path: Path, name: str) -> None:
    async with busy(tmp_path) as (rig, replica, pods):
        for fault in FAULTS[name]:
            fault.hits = 0
            rig.api.faults.add(fault)
        if "watch" in name:
            rig.api.faults.cut_watches()
        for number in range(PODS):
            await rig.cluster.apply(pod(f"p{number}", 1500))
        await all_is_well(rig, replica, pods)
        assert all(fault.hits for fault in FAULTS[name]), "a fault that never struck shows nothing"


@pytest.mark.parametrize("how", ["cut", "forgotten"])
async def test_watches_that_end_again_and_again(tmp_path: Path, how: str) -> None:
    async with busy(tmp_path) as (rig, replica, pods):
        harm: Callable[[], object] = rig.api.faults.cut_watches if how == "cut" else lambda: _cut_and_forget(rig)

        async def harass() -> None:
            while True:
                harm()
                await asyncio.sleep(0.3)

        task = asyncio.ensure_future(harass())
        try:
            for number in range(PODS):
                await rig.cluster.apply(pod(f"p{number}", 1500))
            await rig.until(lambda: bound(pods) >= PODS, "every pod bound")
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await all_is_well(rig, replica, pods)


def _cut_and_forget(rig: Rig) -> None:
    rig.api.faults.cut_watches()
    rig.api.faults.forget_history()


async def test_pods_that_are_deleted_while_they_are_bound_leave_nothing(tmp_path: Path) -> None:
    async with busy(tmp_path) as (rig, replica, pods):
        for number in range(PODS):
            await rig.cluster.apply(pod(f"p{number}", 1500))
            if number % 2:
                await rig.client.request("DELETE", f"/api/v1/namespaces/default/pods/p{number}?gracePeriodSeconds=0")
        await rig.until(lambda: bound(pods) >= PODS // 2, "the others bound")
        await rig.until(lambda: len(list(replica.world.ledger.claims())) == PODS // 2, "the deleted hold nothing")
        await all_is_well(rig, replica, pods, PODS // 2)


async def test_a_restart_in_the_middle_forgets_nothing(tmp_path: Path) -> None:
    """The first scheduler stops with reservations in memory and bindings under way."""
    async with rigged(tmp_path) as rig:
        for number in range(NODES):
            await rig.cluster.apply(node(f"n{number}", cards=2))
        pods = await rig.serve_pods()
        first = await rig.replica()
        kube_scheduler = await rig.kube_scheduler(first)
        for number in range(PODS):
            await rig.cluster.apply(pod(f"p{number}", 1500))
        try:
            await rig.until(lambda: bound(pods) >= PODS // 4, "some pods bound")
        finally:
            await kube_scheduler.stop()
        second = await rig.replica()
        kube_scheduler = await rig.kube_scheduler(second)
        try:
            await all_is_well(rig, second, pods)
        finally:
            await kube_scheduler.stop()


async def test_forty_pods_of_one_job_on_one_node_cost_four_requests_each_and_no_failed_bind(tmp_path: Path) -> None:
    """Reports B64 and B65: upstream's lock gives such a node one pod in five minutes, or a bind time-out."""
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n0", cards=4))
        replica = await rig.replica()
        pods = await rig.serve_pods()
        kube_scheduler = await rig.kube_scheduler(replica)
        begun = asyncio.get_running_loop().time()
        try:
            for number in range(40):
                await rig.cluster.apply(pod(f"p{number}", 1500))
            await rig.until(lambda: bound(pods) >= 40, "every pod bound")
            took_s = asyncio.get_running_loop().time() - begun
            await rig.until(lambda: ours(rig, "create", "events") >= 80, "every event written")
        finally:
            await kube_scheduler.stop()
        events = (await rig.get("/api/v1/events"))["items"]
        assert [each["message"] for each in events if each["reason"] == "BindingFailed"] == []
        writes = sum(ours(rig, verb, "") for verb in ("create", "patch", "update"))
        reads = ours(rig, "get", "") + ours(rig, "list", "")
        print(f"40 pods on one node in {took_s:.1f} s, {writes} writes, {reads} reads")
        assert writes <= 4 * 40
        assert reads <= 40
