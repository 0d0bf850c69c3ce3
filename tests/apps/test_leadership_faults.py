"""Leaders that do not know that they lost: a stalled one, and a lease that swings while pods are scheduled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hami.core import keys
from hami.sim.apiserver.faults import LATENCY, Fault
from tests.apps.elections import election, two_replicas
from tests.apps.rig import Obj, node, pod, rigged


def bind_args(created: Obj, node_name: str) -> Obj:
    meta = created["metadata"]
    return {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node_name}


async def test_a_leader_that_stalls_before_its_binding_gives_no_card_twice(tmp_path: Path) -> None:
    """As SIGSTOP between token and Binding: another leads meanwhile, fills the node, then the first one goes on."""
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n1", cards=1))
        first = await rig.replica(*election("a-1"))
        second = await rig.replica(*election("a-10"), "--node-lock-timeout=100ms")
        await rig.hold_lease("a-1_uuid")
        made = {}
        for name in ("a", "b"):
            await rig.cluster.apply(pod(name, 16000))
            made[name] = await rig.the_pod(name)
        stall = rig.api.faults.add(Fault(LATENCY, "create", "pods/binding", "a", seconds=300.0, times=1))
        assert (await rig.call(first, "filter", {"Pod": made["a"], "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
        stalled = asyncio.ensure_future(rig.call(first, "bind", bind_args(made["a"], "n1")))
        await rig.until(lambda: stall.hits, "the first leader has the token")
        await rig.hold_lease("a-10_uuid")
        assert (await rig.call(second, "filter", {"Pod": made["b"], "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
        assert (await rig.call(second, "bind", bind_args(made["b"], "n1")))["Error"] == ""
        assert not stalled.done(), "the first one went on too early to show anything"
        stall.seconds = 0.0
        assert (await stalled)["Error"]
        assert not (await rig.the_pod("a"))["spec"].get("nodeName")
        assert (await rig.the_pod("b"))["spec"]["nodeName"] == "n1"
        lock = (await rig.the_node("n1"))["metadata"]["annotations"][keys.NODE_LOCK]
        assert lock.endswith(",default,b"), "the token of the second leader is untouched"
        assert (await rig.audit()).faults == []


async def test_a_lease_that_swings_while_both_kube_schedulers_live_loses_no_pod(tmp_path: Path) -> None:
    """Each kube-scheduler goes on calling its own extender; only the leader's calls have an effect."""
    async with rigged(tmp_path) as rig:
        for number in range(4):
            await rig.cluster.apply(node(f"n{number}", cards=2))
        first, second = await two_replicas(rig)
        pods = await rig.serve_pods()
        await rig.hold_lease("a-1_uuid")
        kube_schedulers = [await rig.kube_scheduler(replica) for replica in (first, second)]

        def bound() -> int:
            return sum(bool(found["spec"].get("nodeName")) for found in pods.objects.values())

        try:
            for number in range(80):
                await rig.cluster.apply(pod(f"p{number}", 1500))
            for turn, holder in enumerate(("a-10", "a-1", "a-10"), start=1):
                goal = 15 * turn
                await rig.until(lambda goal=goal: bound() >= goal, f"{goal} pods bound")  # type: ignore[misc]
                await rig.hold_lease(f"{holder}_uuid")
            await rig.until(lambda: bound() >= 80, "every pod bound")
        finally:
            for kube_scheduler in kube_schedulers:
                await kube_scheduler.stop()
        assert (await rig.audit()).faults == []
        for replica in (first, second):
            assert await rig.differences(replica) == []
