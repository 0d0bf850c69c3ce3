"""Faults from public reports that need whole processes: writes, waiting pods, nodes that leave and come back."""

from __future__ import annotations

from pathlib import Path

from hami.sim.client import Informer
from tests.apps.outcomes import bound, ours
from tests.apps.rig import MERGE, Obj, Rig, node, pod, rigged


async def test_b56_objects_that_do_not_concern_us_are_never_written(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "cpu"}})
        await rig.cluster.apply(node("n0"))
        for number in range(30):
            plain = pod(f"p{number}", scheduler="default-scheduler")
            plain["spec"]["containers"][0].pop("resources")
            await rig.cluster.apply(plain)
        replica = await rig.replica()
        for number in range(30):
            await rig.annotate(f"/api/v1/namespaces/default/pods/p{number}", {"touched": "yes"})
        await rig.annotate("/api/v1/nodes/cpu", {"touched": "yes"})
        await rig.until(lambda: replica._watches[1].events >= 30, "every change seen")
        # One turn of the sweep, which lets nodes and reservations age.
        await replica.world.settle()
        assert [ours(rig, verb, "") for verb in ("create", "patch", "update", "delete")] == [0, 0, 0, 0]


async def test_b44_b59_a_waiting_pod_is_placed_when_a_node_comes_or_comes_back(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n0", cards=1))
        await set_offer(rig, "n0", "0")
        replica = await rig.replica()
        pods = await rig.serve_pods()
        kube_scheduler = await rig.kube_scheduler(replica)
        try:
            await rig.cluster.apply(pod("waits", 16000))
            await rig.until(lambda: refused(pods, "waits"), "the pod is unschedulable, not in error")
            await set_offer(rig, "n0", "10")
            await rig.until(lambda: bound(pods) == 1, "the node came back")
            await rig.cluster.apply(pod("more", 16000))
            await rig.until(lambda: refused(pods, "more"), "the only card is full")
            await rig.cluster.apply(node("n1", cards=1))
            await rig.until(lambda: bound(pods) == 2, "the new node is used")
        finally:
            await kube_scheduler.stop()


async def test_b49_b52_a_vetoed_choice_leaves_nothing_behind(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        for name in ("n0", "n1", "n2"):
            await rig.cluster.apply(node(name, cards=1))
        replica = await rig.replica()
        await rig.cluster.apply(pod("p", 16000))
        found = await rig.the_pod("p")
        for name in ("n0", "n1", "n2", "n1"):
            answer = await rig.call(replica, "filter", {"Pod": found, "NodeNames": [name]})
            assert answer["NodeNames"] == [name]
            held = {each.node for each in replica.world.ledger.claims()}
            assert held == {name}
        await rig.client.request("DELETE", "/api/v1/namespaces/default/pods/p")
        await rig.until(lambda: not list(replica.world.ledger.claims()), "the deleted pod holds nothing")


async def test_b49_every_node_that_fits_and_bind_decides(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        for name in ("n0", "n1", "n2"):
            await rig.cluster.apply(node(name, cards=1))
        replica = await rig.replica("--all-feasible")
        found = []
        for name in ("p", "q"):
            await rig.cluster.apply(pod(name, 16000))
            found.append(await rig.the_pod(name))
            answer = await rig.call(replica, "filter", {"Pod": found[-1], "NodeNames": ["n0", "n1", "n2"]})
            assert answer["NodeNames"] == ["n0", "n1", "n2"]
        assert list(replica.world.ledger.claims()) == []
        for body, error in zip(found, ("", "CardInsufficientMemory"), strict=True):
            meta = body["metadata"]
            args = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": "n2"}
            answer = await rig.call(replica, "bind", args)
            assert error in answer["Error"], answer
            assert bool(answer["Error"]) == bool(error)
        assert (await rig.the_pod("p"))["spec"]["nodeName"] == "n2"
        assert "nodeName" not in (await rig.the_pod("q"))["spec"]


async def test_b50_the_preempt_verb_reads_pods_and_budgets_of_the_cluster(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n0", cards=1))
        replica = await rig.replica("--preempt")
        pods = await rig.serve_pods()
        kube_scheduler = await rig.kube_scheduler(replica)
        try:
            for name in ("kept", "lowly"):
                await rig.cluster.apply(pod(name, 8000, labels={"app": name}))
            await rig.until(lambda: bound(pods) == 2, "both hold a share")
        finally:
            await kube_scheduler.stop()
        budget: Obj = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
        budget |= {"metadata": {"name": "keep", "namespace": "default"}, "status": {"disruptionsAllowed": 0}}
        await rig.cluster.apply({**budget, "spec": {"selector": {"matchLabels": {"app": "kept"}}}})
        await rig.cluster.apply(pod("urgent", 8000))
        urgent = await rig.the_pod("urgent")
        urgent["spec"]["priority"] = 1000
        args = {"Pod": urgent, "NodeNameToMetaVictims": {"n0": {"Pods": [], "NumPDBViolations": 0}}}
        answer = await rig.call(replica, "preempt", args)
        uid = (await rig.the_pod("lowly"))["metadata"]["uid"]
        assert answer == {"NodeNameToMetaVictims": {"n0": {"Pods": [{"UID": uid}], "NumPDBViolations": 0}}}


async def set_offer(rig: Rig, name: str, count: str) -> None:
    body = {"status": {"allocatable": {"nvidia.com/gpu": count}}}
    await rig.client.request("PATCH", f"/api/v1/nodes/{name}/status", body, content_type=MERGE)


def refused(pods: Informer, name: str) -> bool:
    conditions = pods.objects.get(f"default/{name}", {}).get("status", {}).get("conditions") or ()
    return any(each["type"] == "PodScheduled" and each.get("reason") == "Unschedulable" for each in conditions)
