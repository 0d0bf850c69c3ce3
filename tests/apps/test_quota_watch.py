"""The reflector of ResourceQuota objects: what it feeds, and a process that may not read them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from hami.apps import quota_watch
from hami.apps.quota_watch import QuotaWatch
from hami.kube.access import Access
from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer
from tests.kube.canned import serving
from tests.placement.fakes import container, make_node, make_pod, make_world
from tests.tools.api_server import connected
from tests.tools.waiting import until

IN_DEFAULT = "/api/v1/namespaces/default/resourcequotas"


@asynccontextmanager
async def running(watch: QuotaWatch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def quota(limit: str) -> bytes:
    hard = {"limits.nvidia.com/gpumem": limit}
    body = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": hard}}
    return msgspec.json.encode(body)


async def test_limits_follow_the_objects(tmp_path: Path) -> None:
    world = make_world()
    world.on_node(make_node("n1"))
    pod = make_pod("p", container(memory_mib=1000))
    async with ApiServer(bookmark_interval_s=0.2) as api, await connected(api, tmp_path) as client:
        await client.request("POST", IN_DEFAULT, quota("500"))
        watch = QuotaWatch(client, world)
        async with running(watch):
            await asyncio.wait_for(watch.settled.wait(), 60)
            refusal = watch.advise("default", pod)
            assert refusal is not None
            assert refusal.message.startswith("exceeding resource quota q in namespace default")
            await client.request("PATCH", f"{IN_DEFAULT}/q", quota("1000"), content_type="application/merge-patch+json")
            await until(lambda: watch.advise("default", pod) is None, "the raised limit")
            await client.request("PATCH", f"{IN_DEFAULT}/q", quota("0"), content_type="application/merge-patch+json")
            await until(lambda: watch.advise("default", pod) is not None, "the limit of zero")
            await client.request("DELETE", f"{IN_DEFAULT}/q")
            await until(lambda: watch.advise("default", pod) is None, "the deletion")


async def test_without_the_permission_it_says_so_once_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_watch, "_ASK_AGAIN_S", 0.01)
    allowed, asked = False, 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if not allowed:
            status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": "resourcequotas is forbidden"}
            return web.json_response(status, status=403)
        if "watch" in request.query:
            return web.json_response({"kind": "Status", "code": 400, "message": "no watch"}, status=400)
        body = {"metadata": {"resourceVersion": "5"}, "items": [json.loads(quota("500"))]}
        return web.json_response(body)

    world = make_world()
    async with serving(handler) as address, ApiClient(Access(server=address), qps=1000, burst=1000) as client:
        watch = QuotaWatch(client, world)
        with capture_logs() as logs:
            async with running(watch):
                await asyncio.wait_for(watch.settled.wait(), 60)
                assert watch.advise("", make_pod("p", container(memory_mib=1000))) is None
                await until(lambda: asked > 3, "more than one refusal")
                allowed = True
                await until(lambda: watch.advise("", make_pod("p", container(memory_mib=1000))), "the permission")
        told = [entry for entry in logs if entry["event"].startswith("resource quotas cannot be read")]
        assert [entry["why"] for entry in told] == ["resourcequotas is forbidden"]
