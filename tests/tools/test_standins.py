"""The stand-in plugins of `make throughput` measure what a plugin does: each served pod, its own token only, through
any end of a watch. (A stand-in that ended with its watch left tokens that nobody took off: no fault of the scheduler.)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from hami.core import keys
from hami.core.token import encode_token
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.sim.apiserver import ApiServer
from tests.cluster import standins
from tests.cluster.standins import StandIns
from tests.kube.objects import make_node, make_pod
from tests.tools.waiting import until_answered

WORK = {keys.BIND_PHASE: keys.PHASE_ALLOCATING, standins.TO_ALLOCATE: "GPU-0,NVIDIA,1000,10:;"}


@asynccontextmanager
async def playing(client: ApiClient) -> AsyncIterator[StandIns]:
    async with aiohttp.ClientSession() as session:
        plugins = StandIns(session, client.server)
        watches = [asyncio.create_task(plugins.watch(kind)) for kind in ("pods", "nodes")]
        try:
            yield plugins
        finally:
            for watch in watches:
                watch.cancel()
            ended = await asyncio.gather(*watches, return_exceptions=True)
            assert all(isinstance(one, asyncio.CancelledError) for one in ended), ended


async def bind(client: ApiClient, number: int) -> str:
    """A node with the token of a pod that is bound there; the token."""
    token = encode_token("default", f"p{number}", 1_800_000_000 + number)
    await make_node(client, f"n{number}", {keys.NODE_LOCK: token})
    await make_pod(client, f"p{number}", node=f"n{number}", annotations=WORK)
    return token


async def served(client: ApiClient, number: int) -> bool:
    writer = KubeWriter(client)
    pod, node = await writer.get_pod("default", f"p{number}"), await writer.get_node(f"n{number}")
    return pod.annotations[keys.BIND_PHASE] == keys.PHASE_SUCCESS and keys.NODE_LOCK not in node.annotations


@pytest.mark.parametrize("harm", ["nothing", "cut", "forgotten"])
async def test_pods_are_served_through_any_end_of_a_watch(api: ApiServer, client: ApiClient, harm: str) -> None:
    await bind(client, 1)
    async with playing(client) as plugins:
        await until_answered(lambda: served(client, 1), "p1 served")
        if harm != "nothing":
            assert api.faults.cut_watches() > 0
        await bind(client, 2)
        if harm == "forgotten":
            api.faults.forget_history()
        await until_answered(lambda: served(client, 2), "p2 served")
        assert set(plugins.bound_at_s) == {"default/p1", "default/p2"}


async def test_the_token_of_another_pod_stays(client: ApiClient) -> None:
    other = encode_token("default", "other", 1_800_000_000)
    await make_node(client, "n1", {keys.NODE_LOCK: other})
    await make_node(client, "n2", {keys.NODE_LOCK: encode_token("default", "p2", 1_800_000_000)})
    writer = KubeWriter(client)
    async with playing(client):
        await make_pod(client, "p1", node="n1", annotations=WORK)
        await until_answered(lambda: _success(writer, "p1"), "p1 done")
        await make_pod(client, "p2", node="n2", annotations=WORK)
        await until_answered(lambda: served(client, 2), "p2 served")
    assert (await writer.get_node("n1")).annotations[keys.NODE_LOCK] == other


async def _success(writer: KubeWriter, name: str) -> bool:
    return (await writer.get_pod("default", name)).annotations[keys.BIND_PHASE] == keys.PHASE_SUCCESS
