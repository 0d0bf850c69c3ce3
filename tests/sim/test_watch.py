"""Watches: history, selectors, bookmarks, the initial list, timeouts, 410, and faults that end them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.kinds import parse_path
from hami.sim.apiserver.store import Change, Store, Subscription
from hami.sim.apiserver.views import Query
from hami.sim.apiserver.watch import Watch
from tests.sim.http import Http, pod

PODS = "/api/v1/namespaces/default/pods"


class Stream:
    """Lines of one watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def next(self, bookmarks: bool = False) -> dict[str, Any] | None:
        """The next event, None at the end of the stream."""
        while True:
            line = await asyncio.wait_for(self._response.content.readline(), 60)
            if not line:
                return None
            event: dict[str, Any] = msgspec.json.decode(line)
            if bookmarks or event["type"] != "BOOKMARK":
                return event

    async def seen(self) -> tuple[str, str]:
        event = await self.next()
        assert event is not None
        return event["type"], event["object"]["metadata"]["name"]


@asynccontextmanager
async def watch(http: Http, path: str = PODS, **query: str) -> AsyncIterator[Stream]:
    async with http.session.get(http.base_url + path, params={"watch": "true", **query}) as response:
        assert response.status == 200
        try:
            yield Stream(response)
        finally:
            # A polite TLS goodbye to a server that is still sending would outlive the test's event loop.
            if response.connection is not None and response.connection.transport is not None:
                response.connection.transport.abort()
                await asyncio.sleep(0)


class Late(Subscription):
    """A change that comes in the very turn in which the wait for changes ends."""

    def __init__(self, change: Change) -> None:
        super().__init__(())
        self._change = change

    async def get(self) -> Change | None:
        try:
            await asyncio.Event().wait()
        finally:
            self.push(self._change)
        return None


async def test_no_bookmark_runs_ahead_of_a_change() -> None:
    """Who resumes from the bookmark would never see the change."""
    store, target = Store(), parse_path(PODS)
    stored = store.create(target.kind, pod("a") | {"metadata": {"name": "a", "namespace": "default"}})
    query = Query.read(target, {"timeoutSeconds": "0.05", "allowWatchBookmarks": "true"}, "")
    late = Late(Change("ADDED", None, stored, stored.revision))
    lines = [line async for line in Watch(store, target, query, 60)._changes(late)]
    assert [msgspec.json.decode(line)["type"] for line in lines] == ["ADDED"]


async def test_changes_after_a_version_in_order(world: Http) -> None:
    await world.post(PODS, pod("before"))
    version = (await world.get(PODS))["metadata"]["resourceVersion"]
    await world.post(PODS, pod("a"))
    async with watch(world, resourceVersion=version) as stream:
        assert await stream.seen() == ("ADDED", "a")
        await world.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
        assert await stream.seen() == ("MODIFIED", "a")
        await world.call("DELETE", f"{PODS}/a")
        event = await stream.next()
        assert event is not None
        assert (event["type"], "deletionTimestamp" in event["object"]["metadata"]) == ("MODIFIED", True)
        event = await stream.next()
        assert event is not None
        assert (event["type"], event["object"]["kind"]) == ("DELETED", "Pod")
        assert int(event["object"]["metadata"]["resourceVersion"]) > int(version)


async def test_objects_enter_and_leave_a_selective_watch(world: Http) -> None:
    await world.post(PODS, pod("a"))
    async with watch(world, labelSelector="x=1") as stream:
        await world.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "1"}}})
        assert await stream.seen() == ("ADDED", "a")
        await world.patch(f"{PODS}/a", {"metadata": {"labels": {"x": "2"}}})
        assert await stream.seen() == ("DELETED", "a")


async def test_initial_events_end_with_a_marked_bookmark(world: Http) -> None:
    await world.post(PODS, pod("a"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with watch(world, **query) as stream:
        assert await stream.seen() == ("ADDED", "a")
        event = await stream.next(bookmarks=True)
        assert event is not None
        assert event["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        await world.post(PODS, pod("b"))
        assert await stream.seen() == ("ADDED", "b")


async def test_bookmarks_carry_the_revision_of_other_writes(server: ApiServer, http: Http) -> None:
    async with watch(http, allowWatchBookmarks="true", resourceVersion=str(server.store.revision)) as stream:
        await http.post("/api/v1/nodes", {"metadata": {"name": "n1"}})
        wanted = str(server.store.revision)
        while True:
            event = await stream.next(bookmarks=True)
            assert event is not None
            assert event["type"] == "BOOKMARK"
            if event["object"]["metadata"]["resourceVersion"] == wanted:
                break


async def test_a_watch_ends_at_its_timeout(world: Http) -> None:
    async with watch(world, timeoutSeconds="1") as stream:
        assert await stream.next() is None


async def test_forgotten_versions_answer_410(server: ApiServer, http: Http) -> None:
    version = (await http.get(PODS))["metadata"]["resourceVersion"]
    await http.post(PODS, pod("a"))
    page = await http.get("/api/v1/namespaces", limit="1")
    server.faults.forget_history()
    async with watch(http, resourceVersion=version) as stream:
        event = await stream.next()
        assert event is not None
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    code, status = await http.call("GET", "/api/v1/namespaces", **{"continue": page["metadata"]["continue"]})
    assert (code, status["reason"]) == (410, "Expired")


async def test_history_is_bounded() -> None:
    async with ApiServer(history_limit=2) as server, aiohttp.ClientSession() as session:
        http = Http(session, server.base_url)
        version = (await http.get(PODS))["metadata"]["resourceVersion"]
        for name in ("a", "b", "c"):
            await http.post(PODS, pod(name))
        async with watch(http, resourceVersion=version) as stream:
            event = await stream.next()
            assert event is not None
            assert event["object"]["code"] == 410


async def test_cut_watches_end_and_can_be_resumed_without_loss(server: ApiServer, http: Http) -> None:
    async with watch(http) as stream:
        await http.post(PODS, pod("a"))
        event = await stream.next()
        assert event is not None
        assert server.faults.cut_watches("pods") == 1
        assert await stream.next() is None
    await http.post(PODS, pod("b"))
    async with watch(http, resourceVersion=event["object"]["metadata"]["resourceVersion"]) as stream:
        assert await stream.seen() == ("ADDED", "b")


@pytest.mark.parametrize(
    ("order", "method", "code", "reason"),
    [
        ({"action": "too-many-requests", "seconds": 3, "times": 1}, "GET", 429, "TooManyRequests"),
        ({"action": "internal-error", "times": 1, "verb": "list", "resource": "pods"}, "GET", 500, "InternalError"),
        ({"action": "gone", "times": 1}, "GET", 410, "Expired"),
    ],
)
async def test_faults_by_the_admin_path(http: Http, order: Any, method: str, code: int, reason: str) -> None:
    assert (await http.call("POST", "/sim/faults", order))[0] == 200
    got, status = await http.call(method, PODS)
    assert (got, status["reason"]) == (code, reason)
    assert (await http.call(method, PODS))[0] == 200
    assert (await http.get("/sim/faults"))["faults"][0]["hits"] == 1
    await http.call("DELETE", "/sim/faults")
    assert (await http.get("/sim/faults"))["faults"] == []


async def test_retry_after_header(http: Http) -> None:
    await http.call("POST", "/sim/faults", {"action": "too-many-requests", "seconds": 7, "resource": "pods"})
    async with http.session.get(http.base_url + PODS) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "7")
    assert (await http.call("GET", "/api/v1/nodes"))[0] == 200


async def test_a_lost_answer_has_been_served_all_the_same(server: ApiServer, http: Http) -> None:
    await http.call("POST", "/sim/faults", {"action": "lost-answer", "verb": "create", "times": 1})
    with pytest.raises(aiohttp.ClientError):
        await http.call("POST", PODS, pod("a"))
    assert [item["metadata"]["name"] for item in (await http.get(PODS))["items"]] == ["a"]


async def test_unknown_faults_are_refused(http: Http) -> None:
    code, answer = await http.call("POST", "/sim/faults", {"action": "meteor"})
    assert code == 400
    assert "latency" in answer["error"]


async def test_a_restarted_server_keeps_its_port_and_objects(server: ApiServer, http: Http) -> None:
    await http.post(PODS, pod("a"))
    url = server.base_url
    await server.stop()
    with pytest.raises(aiohttp.ClientError):
        await http.get(PODS)
    await server.start()
    assert server.base_url == url
    assert len((await http.get(PODS))["items"]) == 1


async def test_requests_are_recorded(server: ApiServer, http: Http) -> None:
    await http.post(PODS, pod("a"))
    await http.call("GET", f"{PODS}/missing")
    assert [(one.verb, one.resource, one.code) for one in server.seen] == [
        ("create", "pods", 201),
        ("get", "pods", 404),
    ]
