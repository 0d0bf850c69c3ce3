"""The reflector against the API server stand-in, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from hami.core.objects import Node, Pod, node_decoder, pod_decoder
from hami.kube import paths
from hami.kube.access import Access
from hami.kube.backoff import Backoff
from hami.kube.client import ApiClient
from hami.kube.reflector import EventType, Reflector
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from tests.kube.canned import serving
from tests.kube.objects import make_node, make_pod
from tests.tools.running import running
from tests.tools.waiting import DEADLINE_S, until


class Mirror:
    """What a handler knows: the last complete state with all changes since."""

    def __init__(self) -> None:
        self.objects: dict[str, Pod | Node] = {}
        self.replaced = 0

    def on_replaced(self, objects: list[Pod] | list[Node]) -> None:
        self.replaced += 1
        self.objects = {item.metadata.name: item for item in objects}

    async def on_event(self, kind: EventType, item: Pod | Node) -> None:
        if kind is EventType.DELETED:
            self.objects.pop(item.metadata.name, None)
        else:
            self.objects[item.metadata.name] = item

    @property
    def names(self) -> set[str]:
        return set(self.objects)


def node_reflector(
    client: ApiClient, mirror: Mirror, *, initial_events: bool = True, backoff: Backoff | None = None, **limits: Any
) -> Reflector[Node]:
    return Reflector(
        client,
        paths.NODES,
        node_decoder,
        mirror.on_replaced,
        mirror.on_event,
        initial_events=initial_events,
        backoff=backoff or Backoff(0.01, 0.05),
        **limits,
    )


BOTH = pytest.mark.parametrize("initial_events", [True, False])


@BOTH
async def test_first_state_then_changes(client: ApiClient, initial_events: bool) -> None:
    await make_node(client, "n1")
    mirror = Mirror()
    reflector = node_reflector(client, mirror, initial_events=initial_events)
    assert not reflector.ready.is_set()
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
        assert mirror.names == {"n1"}
        await make_node(client, "n2")
        await client.request("DELETE", paths.node("n1"))
        await until(lambda: mirror.names == {"n2"}, "one added, one gone")
        assert mirror.replaced == 1


async def test_an_empty_cluster_is_a_state_too(client: ApiClient) -> None:
    mirror = Mirror()
    reflector = node_reflector(client, mirror)
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
    assert (mirror.replaced, mirror.names) == (1, set())


async def test_lists_go_in_pages(api: ApiServer, client: ApiClient) -> None:
    for index in range(401):
        await make_node(client, f"n{index}")
    mirror = Mirror()
    reflector = node_reflector(client, mirror, initial_events=False)
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
    assert len(mirror.names) == 401
    assert sum(seen.verb == "list" for seen in api.seen) == 3


@BOTH
async def test_a_cut_watch_goes_on_without_a_list(api: ApiServer, client: ApiClient, initial_events: bool) -> None:
    mirror = Mirror()
    reflector = node_reflector(client, mirror, initial_events=initial_events)
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
        for index in range(3):
            assert api.faults.cut_watches("nodes") <= 1
            await make_node(client, f"n{index}")
        await until(lambda: mirror.names == {"n0", "n1", "n2"}, "nothing lost")
    assert reflector.stats.lists == 1


@BOTH
async def test_410_lists_again(api: ApiServer, client: ApiClient, initial_events: bool) -> None:
    await make_node(client, "n1")
    mirror = Mirror()
    reflector = node_reflector(client, mirror, initial_events=initial_events)
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
        await api.stop()
        await api.start()
        await until(lambda: reflector.stats.failures or reflector.stats.watches > 1, "the watch ended")
        await make_node(client, "n2")
        await client.request("DELETE", paths.node("n1"))
        api.faults.forget_history()
        api.faults.cut_watches("nodes")
        await until(lambda: mirror.names == {"n2"}, "the new state")
        await make_node(client, "n3")
        await until(lambda: mirror.names == {"n2", "n3"}, "changes after it")


async def test_410_as_http_status_lists_again(api: ApiServer, client: ApiClient) -> None:
    mirror = Mirror()
    reflector = node_reflector(client, mirror)
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
        api.faults.add(Fault("gone", verb="watch", times=1))
        api.faults.cut_watches("nodes")
        await until(lambda: reflector.stats.lists == 2, "a second list")


async def test_an_api_server_that_is_down_is_waited_for(api: ApiServer, client: ApiClient) -> None:
    mirror = Mirror()
    reflector = node_reflector(client, mirror)
    await api.stop()
    async with running(reflector.run()):
        await until(lambda: reflector.stats.failures >= 2, "failures")
        assert not reflector.ready.is_set()
        await api.start()
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)


async def test_field_selector_keeps_foreign_pods_out(client: ApiClient) -> None:
    await make_node(client, "n1")
    await make_node(client, "n2")
    await make_pod(client, "mine", node="n1")
    await make_pod(client, "foreign", node="n2")
    mirror = Mirror()
    reflector = Reflector(
        client, paths.PODS, pod_decoder, mirror.on_replaced, mirror.on_event, field_selector="spec.nodeName=n1"
    )
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
        await make_pod(client, "later", node="n1")
        await until(lambda: "later" in mirror.names, "a new pod")
    assert mirror.names == {"mine", "later"}


async def test_bookmarks_move_the_version_on(client: ApiClient) -> None:
    mirror = Mirror()
    reflector = node_reflector(client, mirror)
    async with running(reflector.run()):
        await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
        heard = reflector.stats.last_heard_monotonic_s
        await make_pod(client, "elsewhere")
        await until(lambda: reflector.stats.last_heard_monotonic_s > heard, "a bookmark")
    assert reflector.stats.events == 0


def node_json(name: str, version: str, **more: object) -> dict[str, object]:
    return {"kind": "Node", "metadata": {"name": name, "resourceVersion": version}, **more}


def listed(*nodes: dict[str, object]) -> web.Response:
    return web.json_response({"metadata": {"resourceVersion": "5"}, "items": list(nodes)})


@pytest.mark.parametrize("status", [400, 422])
async def test_a_server_without_initial_events_gets_lists(status: int) -> None:
    queries = []

    async def handler(request: web.Request) -> web.StreamResponse:
        queries.append(dict(request.query))
        if "sendInitialEvents" in request.query:
            return web.json_response({"message": "forbidden for watch", "code": status}, status=status)
        if "watch" in request.query:
            await asyncio.sleep(600)
        return listed(node_json("n1", "4"))

    mirror = Mirror()
    async with serving(handler) as address, ApiClient(Access(address)) as client:
        reflector = node_reflector(client, mirror)
        async with running(reflector.run()):
            await asyncio.wait_for(reflector.ready.wait(), DEADLINE_S)
            await until(lambda: len(queries) == 3, "the watch")
    assert mirror.names == {"n1"}
    assert queries[1] == {"limit": "200"}
    assert queries[2]["resourceVersion"] == "5"
    assert queries[2]["allowWatchBookmarks"] == "true"
    assert reflector.stats.failures == 0


async def test_one_undecodable_object_does_not_hide_the_others() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if "watch" not in request.query:
            return listed(node_json("n1", "3"), node_json("bad", "4", spec={"unschedulable": "perhaps"}))
        response = web.StreamResponse()
        await response.prepare(request)
        for event in (
            {"type": "MODIFIED", "object": node_json("bad", "6", spec=7)},
            {"type": "NOVEL", "object": node_json("n9", "7")},
            {"type": "ADDED", "object": node_json("n2", "8")},
        ):
            await response.write(json.dumps(event).encode() + b"\n")
        await asyncio.sleep(600)
        return response

    mirror = Mirror()
    async with serving(handler) as address, ApiClient(Access(address)) as client:
        reflector = node_reflector(client, mirror, initial_events=False)
        async with running(reflector.run()):
            await until(lambda: mirror.names == {"n1", "n2"}, "the good ones")
    assert reflector.stats.undecodable == 3


async def test_a_watch_that_ends_at_once_is_not_asked_for_in_a_tight_loop() -> None:
    watches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return listed(node_json("n1", "4"))
        watches += 1
        return web.Response(text="")

    mirror = Mirror()
    async with serving(handler) as address, ApiClient(Access(address), qps=0) as client:
        reflector = node_reflector(client, mirror, initial_events=False, backoff=Backoff(0.2, 0.2))
        async with running(reflector.run()):
            await until(lambda: watches >= 4, "retries")
            assert reflector.stats.failures >= 3


async def test_a_quiet_watch_ends_when_the_server_ends_it_and_that_is_no_failure() -> None:
    watches = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            return listed(node_json("n1", "4"))
        watches += 1
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(float(request.query["timeoutSeconds"]))
        return response

    mirror = Mirror()
    async with serving(handler) as address, ApiClient(Access(address), qps=0) as client:
        reflector = node_reflector(client, mirror, initial_events=False, watch_seconds=2)
        async with running(reflector.run()):
            await until(lambda: watches >= 2, "the watch begins anew")
            assert reflector.stats.failures == 0


async def test_b55_a_watch_that_stays_silent_is_given_up_and_lists_show_what_went_by() -> None:
    lists = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal lists
        if "watch" not in request.query:
            lists += 1
            return listed(node_json("n1" if lists == 1 else "n2", str(lists)))
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(600)
        return response

    mirror = Mirror()
    async with serving(handler) as address, ApiClient(Access(address), qps=0) as client:
        reflector = node_reflector(client, mirror, initial_events=False, backoff=Backoff(0.01, 0.01), silence_s=0.1)
        async with running(reflector.run()):
            await until(lambda: mirror.names == {"n2"}, "what happened while the watch was silent")


def test_backoff_grows_to_its_cap_and_starts_again() -> None:
    backoff = Backoff(0.5, 30)
    delays = [backoff.next_s() for _ in range(12)]
    assert all(0.25 <= delays[0] <= 0.5 and delay <= 30 for delay in delays)
    assert min(delays[7:]) >= 15
    backoff.reset()
    assert backoff.next_s() <= 0.5
