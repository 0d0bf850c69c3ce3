"""What `make throughput` compares with really binds, and says so when it cannot: else its rate would mean nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from hami.core import keys
from hami.kube.client import ApiClient
from hami.kube.writer import KubeWriter
from hami.web import asgi
from tests.cluster.official_extender import core_api, extender
from tests.cluster.pki import Authority
from tests.cluster.plain_extender import PlainExtender
from tests.kube.objects import make_node, make_pod
from tests.web.asgi_client import call

NAMES = ["n1", "n2", "n3"]


@asynccontextmanager
async def official(access: dict[str, str]) -> AsyncIterator[asgi.App]:
    api = core_api(access)
    try:
        yield cast("asgi.App", extender(api))
    finally:
        api.api_client.rest_client.pool_manager.clear()


@asynccontextmanager
async def leanest(access: dict[str, str], *, same_writes: bool = False) -> AsyncIterator[asgi.App]:
    made = PlainExtender(access, same_writes=same_writes)
    try:
        yield made
    finally:
        await made.close()


def same_writes(access: dict[str, str]) -> AbstractAsyncContextManager[asgi.App]:
    return leanest(access, same_writes=True)


Maker = Callable[[dict[str, str]], AbstractAsyncContextManager[asgi.App]]
MAKERS: list[Maker] = [official, leanest, same_writes]


@pytest.fixture
def access(client: ApiClient, tmp_path: Path) -> dict[str, str]:
    return {"server": client.server, "ca": str(Authority(tmp_path).cert), "token": "any"}


async def ask(app: asgi.App, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = await call(app, path, json.dumps(body).encode())
    assert reply.status == 200, reply
    answer: dict[str, Any] = json.loads(reply.body)
    return answer


def bind_body(uid: str, pod: str = "p1") -> dict[str, str]:
    return {"PodName": pod, "PodNamespace": "default", "PodUID": uid, "Node": "n2"}


@pytest.mark.parametrize("make", MAKERS)
async def test_a_pod_is_bound(make: Maker, client: ApiClient, access: dict[str, str]) -> None:
    await make_node(client, "n2")
    made = await make_pod(client, "p1")
    async with make(access) as app:
        kept = (await ask(app, "/filter", {"NodeNames": NAMES}))["NodeNames"]
        assert set(kept) <= set(NAMES)
        assert kept == NAMES or make is not official
        assert (await ask(app, "/bind", bind_body(made.metadata.uid)))["Error"] == ""
    writer = KubeWriter(client)
    assert (await writer.get_pod("default", "p1")).spec.node_name == "n2"
    token = (await writer.get_node("n2")).annotations.get(keys.NODE_LOCK, "")
    assert token.endswith(",default,p1") is (make is same_writes)


@pytest.mark.parametrize("make", MAKERS)
async def test_what_the_server_refuses_is_told(make: Maker, client: ApiClient, access: dict[str, str]) -> None:
    await make_node(client, "n2")
    async with make(access) as app:
        answer = await ask(app, "/bind", bind_body("none", "nobody"))
    assert "not found" in answer["Error"]
