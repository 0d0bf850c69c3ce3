"""Two replicas and one lease: who answers, what a handover keeps, and what happens under load."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from pathlib import Path

from hami.core import keys
from tests.apps.elections import two_replicas
from tests.apps.rig import MERGE, Rig, node, pod, rigged


async def roles(rig: Rig) -> dict[str, str]:
    found = {}
    for name in ("a-1", "a-10"):
        found[name] = ((await rig.the_pod(name))["metadata"].get("labels") or {}).get(keys.SCHEDULER_ROLE_LABEL, "")
    return found


async def until_roles(rig: Rig, wanted: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        while await roles(rig) != wanted:  # noqa: ASYNC110 - polls the API server
            await asyncio.sleep(0.01)


async def test_only_the_leader_answers_and_each_replica_labels_itself(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n1"))
        first, second = await two_replicas(rig)
        assert gc.get_freeze_count() > 0
        await until_roles(rig, {"a-1": "follower", "a-10": "follower"})
        await rig.hold_lease("a-10_uuid")
        await until_roles(rig, {"a-1": "follower", "a-10": "leader"})
        await rig.cluster.apply(pod("p"))
        created = await rig.the_pod("p")
        ask = {"Pod": created, "NodeNames": ["n1"]}
        refused = await rig.call(first, "filter", ask)
        assert "does not lead" in refused["Error"]
        assert "held by a-10_uuid" in refused["Error"]
        assert (await rig.call(second, "filter", ask))["NodeNames"] == ["n1"]
        request = {"uid": "u", "operation": "CREATE", "namespace": "default", "object": pod("q", scheduler="")}
        review = {"apiVersion": "admission.k8s.io/v1", "request": request}
        for replica in (first, second):
            answer = (await rig.call(replica, "webhook", review))["response"]
            assert answer["allowed"]
            assert answer["patch"], "any ready replica serves the webhook"
        bind = {"PodName": "p", "PodNamespace": "default", "PodUID": created["metadata"]["uid"], "Node": "n1"}
        assert "does not lead" in (await rig.call(first, "bind", bind))["Error"]
        assert not (await rig.the_pod("p"))["spec"].get("nodeName")
        assert (await rig.call(second, "bind", bind))["Error"] == ""
        epoch = (await rig.the_node("n1"))["metadata"]["annotations"][keys.BIND_EPOCH]
        assert epoch.startswith("a-10/")
        await rig.client.request(
            "PATCH",
            "/api/v1/namespaces/default/pods/a-10",
            {"metadata": {"labels": {keys.SCHEDULER_ROLE_LABEL: None}}},
            content_type=MERGE,
        )
        await until_roles(rig, {"a-1": "follower", "a-10": "leader"})


async def test_without_election_a_single_replica_leads(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n1"))
        await rig.cluster.apply(pod("a-1", scheduler="default-scheduler"))
        only = await rig.replica("--pod-name=a-1", "--pod-namespace=default")
        async with asyncio.timeout(60):
            while (await roles_of(rig, "a-1")) != "leader":  # noqa: ASYNC110 - polls the API server
                await asyncio.sleep(0.01)
        await rig.cluster.apply(pod("p"))
        ask = {"Pod": await rig.the_pod("p"), "NodeNames": ["n1"]}
        assert (await rig.call(only, "filter", ask))["NodeNames"] == ["n1"]


async def roles_of(rig: Rig, name: str) -> str:
    labels: dict[str, str] = (await rig.the_pod(name))["metadata"].get("labels") or {}
    return labels.get(keys.SCHEDULER_ROLE_LABEL, "")


async def test_reservations_of_a_lost_term_do_not_outlive_it(tmp_path: Path) -> None:
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n1", cards=1))
        first, _ = await two_replicas(rig)
        await rig.hold_lease("a-1_uuid")
        await rig.cluster.apply(pod("big", 16000))
        ask = {"Pod": await rig.the_pod("big"), "NodeNames": ["n1"]}
        assert (await rig.call(first, "filter", ask))["NodeNames"] == ["n1"]
        assert len(list(first.world.ledger.claims())) == 1
        await rig.hold_lease("a-10_uuid")
        await rig.until(lambda: not list(first.world.ledger.claims()), "the reservation ends")


async def test_each_term_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    """What was bound while another led is listed before a node is trusted again: its epoch has to be told apart."""
    async with rigged(tmp_path) as rig:
        await rig.cluster.apply(node("n1"))
        first, _ = await two_replicas(rig)
        epochs = []
        for number, holder in enumerate(("a-1", "a-10", "a-1")):
            await rig.hold_lease(f"{holder}_uuid")
            if holder == "a-10":
                await rig.until(lambda: not first._leads(), "the first follows")
                continue
            await rig.cluster.apply(pod(f"p{number}"))
            made = await rig.the_pod(f"p{number}")
            uid = made["metadata"]["uid"]
            assert (await rig.call(first, "filter", {"Pod": made, "NodeNames": ["n1"]}))["NodeNames"] == ["n1"]
            bind = {"PodName": f"p{number}", "PodNamespace": "default", "PodUID": uid, "Node": "n1"}
            assert (await rig.call(first, "bind", bind))["Error"] == ""
            annotations = (await rig.the_node("n1"))["metadata"]["annotations"]
            epochs.append(annotations[keys.BIND_EPOCH].partition(",")[0])
            await rig.annotate("/api/v1/nodes/n1", {keys.NODE_LOCK: None})
        assert len(set(epochs)) == 2
        assert all(epoch.startswith("a-1/") for epoch in epochs)


async def test_handover_under_load_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The first leader's kube-scheduler dies in the middle of 80 pods; the second one carries on."""
    async with rigged(tmp_path) as rig:
        for number in range(4):
            await rig.cluster.apply(node(f"n{number}", cards=2))
        first, second = await two_replicas(rig)
        pods = await rig.serve_pods()
        await rig.hold_lease("a-1_uuid")
        kube_scheduler = await rig.kube_scheduler(first)
        for number in range(60):
            await rig.cluster.apply(pod(f"p{number}", 1500))

        def bound() -> int:
            return sum(bool(found["spec"].get("nodeName")) for found in pods.objects.values())

        try:
            await rig.until(lambda: bound() >= 20, "20 pods bound by the first")
        finally:
            await kube_scheduler.stop()
        # However quick the first was: these are the second's.
        for number in range(60, 80):
            await rig.cluster.apply(pod(f"p{number}", 1500))
        await rig.hold_lease("a-10_uuid")
        kube_scheduler = await rig.kube_scheduler(second)
        try:
            await rig.until(lambda: bound() >= 80, "every pod bound")
        finally:
            with contextlib.suppress(Exception):
                await kube_scheduler.stop()
        assert (await rig.audit()).faults == []
        for replica in (first, second):
            assert await rig.differences(replica) == []
        epochs = {
            (await rig.the_node(f"n{number}"))["metadata"]["annotations"][keys.BIND_EPOCH].partition("/")[0]
            for number in range(4)
        }
        assert "a-10" in epochs
