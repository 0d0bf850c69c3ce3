"""etcd restored from a backup under a running scheduler: versions go on from a lower number, and what is newest looks
old. Kubernetes tells operators to restart what watches; a scheduler that was forgotten must neither stop nor misbook.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hami.core.objects import pod_decoder
from hami.deviceplugin.node_view import NodeView
from hami.deviceplugin.node_watch import NodeWatch
from hami.kube import paths
from hami.kube.backoff import Backoff
from hami.kube.client import MERGE_PATCH, ApiClient
from hami.kube.leader import Leadership
from hami.kube.reflector import Reflector
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from tests.reports.site import Object, Site, card, gpu, pod
from tests.tools.running import running
from tests.tools.waiting import until

LEASE = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "hami-scheduler"}}
BACKUP, LATE = 1_000, 9_000
"""Revisions of the backup, and of the history that is lost."""
AT_ONCE = b'{"gracePeriodSeconds":0}'
WHOLE = "GPU-a,NVIDIA,16384,100:;"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_interval_s=60) as server:
        yield server


@asynccontextmanager
async def lost_history(api: ApiServer, revision: int, resource: str = "") -> AsyncIterator[None]:
    """In the block nobody can watch (the resource), and what is written has versions from `revision` on. Then the watch
    begins anew.

    A server that is asked to watch from the lost history says nothing; that silence ends in the same way, but later.
    """
    away = Fault("internal-error", verb="watch", resource=resource)
    gone = Fault("gone", verb="watch", resource=resource, times=1)
    api.faults.add(away)
    api.store.cut_watches()
    await until(lambda: away.hits, "nobody watches")
    api.store.revision = revision
    yield
    api.faults.add(gone)
    api.faults.remove(away)
    await until(lambda: gone.hits, "the watch begins anew")


async def hold(client: ApiClient, holder: str) -> None:
    """Renews the Lease."""
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": "2026-11-30T00:00:00.000000Z"}
    body = json.dumps({"spec": spec}).encode()
    await client.request("PATCH", paths.lease("kube-system", "hami-scheduler"), body, MERGE_PATCH)


async def leases(client: ApiClient, *holders: str) -> None:
    await client.request("POST", paths.leases_in("kube-system"), json.dumps(LEASE).encode())
    for holder in holders:
        await hold(client, holder)


def leadership(client: ApiClient) -> Leadership:
    return Leadership(client, "kube-system", "hami-scheduler", "us", lambda _: None)


async def test_a_live_read_finds_leadership_in_a_restored_lease(api: ApiServer, client: ApiClient) -> None:
    """What is read live is not older than what was known before, unless etcd was restored."""
    api.store.revision = LATE
    await leases(client, "other_1")
    follower = leadership(client)
    assert "held by other_1" in await follower.refusal()
    api.store.revision = BACKUP
    await hold(client, "us_2")
    assert await follower.refusal() == ""


async def test_the_watch_finds_leadership_in_a_restored_lease(api: ApiServer, client: ApiClient) -> None:
    """Nobody asks for a live read here."""
    api.store.revision = LATE
    await leases(client, "us_1")
    follower = leadership(client)
    async with running(follower.run()):
        await until(lambda: follower.leads, "leading")
        async with lost_history(api, BACKUP):
            await hold(client, "other_2")
        await until(lambda: not follower.leads, "not leading")
        async with lost_history(api, BACKUP // 2):
            await hold(client, "us_3")
        await until(lambda: follower.leads, "leading again")


async def test_control_a_late_read_of_an_older_lease_wins_nothing(api: ApiServer, client: ApiClient) -> None:
    """The watch has shown a newer state while the read was on its way: the read is late, etcd is not restored."""
    await leases(client, "us_1")
    follower = leadership(client)
    late = asyncio.create_task(follower.refusal())
    async with running(follower.run()):
        assert await late == ""
        await hold(client, "other_1")
        await until(lambda: not follower.leads, "not leading")
        assert "held by other_1" in await follower.refusal()


def site_with_pods(api: ApiServer, client: ApiClient) -> tuple[Site, Reflector[Any]]:
    """A scheduler with one card, and its watch of pods."""
    site = Site()
    site.node("n1", card("GPU-a"))

    def on_event(kind: str, item: Any) -> None:
        if kind == "DELETED":
            site.world.on_pod_deleted(item.metadata.namespace, item.metadata.name, item.metadata.uid)
        else:
            site.world.on_pod(item)

    reflector = Reflector(
        client,
        paths.PODS,
        pod_decoder,
        None,
        on_event,
        listing=site.world.pod_listing,
        backoff=Backoff(0.01, 0.05),
        on_restored=site.world.ledger.forget_versions,
    )
    return site, reflector


async def bound(client: ApiClient, name: str) -> Object:
    """A pod that holds the whole card."""
    notes = {"hami.io/vgpu-node": "n1", "hami.io/vgpu-devices-allocated": WHOLE}
    spec = {"containers": [{**gpu(gpu=1), "image": "i"}], "nodeName": "n1"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": notes}, "spec": spec}
    made: Object = json.loads(await client.request("POST", paths.pods_in("default"), json.dumps(body).encode()))
    return made


async def test_a_restored_pod_of_the_same_name_holds_its_card(api: ApiServer, client: ApiClient) -> None:
    """A StatefulSet's pod was made anew after the backup: in the restored history its predecessor is the one that
    lives, and has the lower version of the two."""
    site, reflector = site_with_pods(api, client)
    api.store.revision = LATE
    newer = await bound(client, "db-0")
    async with running(reflector.run()):
        await until(lambda: site.world.ledger.get(newer["metadata"]["uid"]) is not None, "booked")
        async with lost_history(api, BACKUP):
            await client.request("DELETE", paths.pod("default", "db-0"), AT_ONCE)
            older = await bound(client, "db-0")
        uid = older["metadata"]["uid"]
        await until(lambda: site.world.ledger.get(uid) is not None, "the restored one is booked")
        assert site.world.ledger.get(newer["metadata"]["uid"]) is None
    site.world.settle_now()
    assert (await site.filter(pod(gpu(gpu=1, mem=1), name="next"), "n1"))["NodeNames"] is None


async def test_the_plugin_knows_the_pods_of_the_restored_history(api: ApiServer, client: ApiClient) -> None:
    """What it knows only spares reads, but would be of no use until the versions are where they were."""
    view = NodeView("n1", time.monotonic)
    watch = NodeWatch(client, "n1", view)
    api.store.revision = LATE
    await bound(client, "db-0")
    async with running(watch.run()):
        await until(lambda: len(view.pods) == 1, "known")
        async with lost_history(api, BACKUP, "pods"):
            path = paths.pod("default", "db-0")
            await client.request("PATCH", path, b'{"metadata":{"annotations":{"of":"the backup"}}}', MERGE_PATCH)
        await until(lambda: [pod.annotations.get("of") for pod in view.pods] == ["the backup"], "known anew")


async def test_control_without_a_restore_nothing_is_listed_twice(api: ApiServer, client: ApiClient) -> None:
    site, reflector = site_with_pods(api, client)
    await bound(client, "a")
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), 60)
        async with lost_history(api, api.store.revision):
            await bound(client, "b")
        await until(lambda: reflector.stats.lists >= 2, "listed again")
        await client.request("DELETE", paths.pod("default", "b"), AT_ONCE)
        await until(lambda: len(list(site.world.ledger.claims())) == 1, "told of the deletion")
        assert reflector.stats.lists == 2
