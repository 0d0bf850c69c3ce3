"""The fault proxy against a small upstream: what reaches it, what the client sees."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.cluster.pki import Authority
from tests.cluster.processes import PATIENCE_S, wait_until
from tests.tools.proxy import FaultProxy, OpenWatch
from tests.tools.proxy_faults import Fault, When
from tests.tools.watch_faults import WatchFaults, doubled, late_lines, reordered

MOMENTS: tuple[When, When] = ("before", "after")


class Upstream:
    """Remembers who wrote what; streams two lines and then holds a watch open."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, str]] = []
        self.url = ""
        self.answers_slow = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        transport = request.transport
        peer = transport.get_extra_info("peercert") if transport is not None else None
        name = dict(pair[0] for pair in peer["subject"])["commonName"] if peer else ""
        self.seen.append((request.method, request.raw_path, name))
        if request.path == "/slow":
            await self.answers_slow.wait()
        if "watch" not in request.query:
            return web.json_response({"body": (await request.read()).decode()}, headers={"X-Upstream": "yes"})
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await asyncio.Event().wait()
        return response


@pytest.fixture
async def upstream(tmp_path: Path) -> AsyncIterator[Upstream]:
    authority = Authority(tmp_path)
    serving = authority.issue("serving", "upstream", hosts=["127.0.0.1"])
    authority.issue("client", "the-component")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(serving.cert, serving.key)
    tls.load_verify_locations(authority.cert)
    tls.verify_mode = ssl.CERT_REQUIRED
    server = Upstream()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    server.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    yield server
    await runner.cleanup()


@pytest.fixture
def proxy(upstream: Upstream, tmp_path: Path) -> Iterator[FaultProxy]:
    serving = (tmp_path / "serving.crt", tmp_path / "serving.key")
    client = (tmp_path / "client.crt", tmp_path / "client.key")
    proxy = FaultProxy(upstream.url, tmp_path / "ca.crt", serving, client)
    proxy.start()
    yield proxy
    proxy.stop()


def session_of(proxy: FaultProxy, tmp_path: Path) -> aiohttp.ClientSession:
    tls = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    return aiohttp.ClientSession(proxy.url, connector=aiohttp.TCPConnector(ssl=tls))


@pytest.fixture
async def component(tmp_path: Path, proxy: FaultProxy) -> AsyncIterator[aiohttp.ClientSession]:
    async with session_of(proxy, tmp_path) as session:
        yield session


async def test_forwards_with_the_components_certificate_and_counts_writes_only(
    proxy: FaultProxy, upstream: Upstream, component: aiohttp.ClientSession
) -> None:
    async with component.post("/a?x=%26", data="hello") as response:
        assert (await response.json(), response.headers["X-Upstream"]) == ({"body": "hello"}, "yes")
    async with component.get("/b") as response:
        assert response.status == 200
    assert upstream.seen == [("POST", "/a?x=%26", "the-component"), ("GET", "/b", "the-component")]
    assert [(write.number, write.method, write.path, write.status) for write in proxy.writes] == [
        (1, "POST", "/a", 200)
    ]


@pytest.mark.parametrize(("when", "arrives"), [("before", []), ("after", ["/second"])])
async def test_kills_before_or_after_the_nth_write(
    proxy: FaultProxy, upstream: Upstream, component: aiohttp.ClientSession, when: str, arrives: list[str]
) -> None:
    killed = threading.Event()
    fault = proxy.add(Fault(when=when, number=2, callback=killed.set))  # type: ignore[arg-type]  # from a table
    async with component.post("/first"):
        pass
    with pytest.raises(aiohttp.ClientError):
        await component.post("/second")
    assert killed.is_set()
    assert fault.times == 0
    assert [path for _, path, _ in upstream.seen if path != "/first"] == arrives


@pytest.mark.parametrize("status", [409, 429, 500])
async def test_answers_by_itself_as_often_as_told(
    proxy: FaultProxy, upstream: Upstream, component: aiohttp.ClientSession, status: int
) -> None:
    proxy.add(Fault(method="PATCH", path="/nodes/", status=status, times=2))
    statuses = []
    for _ in range(3):
        async with component.patch("/api/v1/nodes/n1") as response:
            statuses.append(response.status)
    assert statuses == [status, status, 200]
    assert len(upstream.seen) == 1


async def test_cuts_watches_and_streams_them_until_then(proxy: FaultProxy, component: aiohttp.ClientSession) -> None:
    async with component.get("/pods?watch=1") as response:
        assert await response.content.readline() == b"one\n"
        assert await asyncio.to_thread(proxy.cut_watches) == 1
        with pytest.raises(aiohttp.ClientError):
            await response.content.readline()


async def test_admin_port_arms_and_lists(proxy: FaultProxy, component: aiohttp.ClientSession) -> None:
    async with aiohttp.ClientSession(proxy.admin_url) as admin:
        await admin.post("/faults", json={"number": 1, "lose": True})
        with pytest.raises(aiohttp.ClientError):
            await component.post("/lost")
        async with admin.get("/writes") as response:
            assert await response.json() == [{"number": 1, "method": "POST", "path": "/lost", "status": None}]
        await admin.post("/reset")
    assert proxy.writes == []


async def test_holds_a_request_and_lets_it_go_on_later(
    proxy: FaultProxy, upstream: Upstream, component: aiohttp.ClientSession
) -> None:
    stopped, go = threading.Event(), threading.Event()
    proxy.add(Fault(method="POST", path="/binding$", callback=stopped.set, hold=go))
    call = asyncio.ensure_future(component.post("/api/v1/namespaces/default/pods/p/binding"))
    assert await asyncio.to_thread(stopped.wait, 60)
    assert upstream.seen == []
    go.set()
    async with await call as response:
        assert response.status == 200
    assert proxy.requests == {"POST binding": 1}


async def test_what_a_dead_client_left_behind_strikes_no_fault_that_is_armed_for_its_successor(
    proxy: FaultProxy, upstream: Upstream, component: aiohttp.ClientSession, tmp_path: Path
) -> None:
    old = asyncio.ensure_future(component.post("/slow"))
    await asyncio.to_thread(wait_until, lambda: upstream.seen, PATIENCE_S, "the call is under way")
    await asyncio.to_thread(proxy.listen_anew)
    faults = [proxy.add(Fault(when=when, method="POST", times=10)) for when in MOMENTS]
    async with session_of(proxy, tmp_path) as successor:
        upstream.answers_slow.set()
        async with await old as response:  # what is on its way goes on
            assert response.status == 200
        with pytest.raises(aiohttp.ClientError):
            await component.post("/late")  # and what comes now is not heard
        assert [(fault.met, fault.struck) for fault in faults] == [(0, 0)] * 2
        assert proxy.writes == []
        async with successor.post("/mine") as response:
            assert response.status == 200
    assert [(fault.met, fault.struck) for fault in faults] == [(1, 1)] * 2
    assert [(write.number, write.path, write.status) for write in proxy.writes] == [(1, "/mine", 200)]


async def test_an_answer_that_comes_after_a_reset_is_none_to_a_write_since(
    proxy: FaultProxy, upstream: Upstream, component: aiohttp.ClientSession
) -> None:
    old = asyncio.ensure_future(component.post("/slow"))
    await asyncio.to_thread(wait_until, lambda: upstream.seen, PATIENCE_S, "the call is under way")
    proxy.reset()
    lost = proxy.add(Fault(number=1, lose=True))
    with pytest.raises(aiohttp.ClientError):
        await component.post("/mine")
    fault = proxy.add(Fault(when="after", number=1, lose=True))
    upstream.answers_slow.set()
    async with await old as response:
        assert response.status == 200
    assert (lost.struck, fault.met) == (1, 0)
    assert [(write.number, write.path, write.status) for write in proxy.writes] == [(1, "/mine", None)]


async def test_strikes_every_third_request_only(proxy: FaultProxy, component: aiohttp.ClientSession) -> None:
    fault = proxy.add(Fault(path="/nodes/", status=429, every=3, times=2))
    statuses = []
    for _ in range(7):
        async with component.patch("/api/v1/nodes/n1") as response:
            statuses.append(response.status)
    assert statuses == [200, 200, 429, 200, 200, 429, 200]
    assert (fault.struck, proxy.requests) == (2, {"PATCH node": 7})


async def test_strikes_by_what_is_written(proxy: FaultProxy, component: aiohttp.ClientSession) -> None:
    given_back = r'"hami.io/mutex.lock":null'
    fault = proxy.add(Fault(method="PATCH", path="/nodes/", body=given_back, status=409))
    statuses = []
    for token in ('"t,n,p"', "null"):
        body = f'{{"metadata":{{"annotations":{{"hami.io/mutex.lock":{token}}}}}}}'
        async with component.patch("/api/v1/nodes/n1", data=body) as response:
            statuses.append(response.status)
    assert (statuses, fault.struck) == ([200, 409], 1)


async def test_tells_which_watches_are_open_and_harmed(proxy: FaultProxy, component: aiohttp.ClientSession) -> None:
    late = WatchFaults(delay_s=0.01)
    async with component.get("/pods?watch=1") as plain:
        assert await plain.content.readline() == b"one\n"
        proxy.harm_watches(late)
        async with component.get("/nodes?watch=1") as harmed:
            assert await harmed.content.readline() == b"one\n"
            assert proxy.open_watches == [OpenWatch("/pods", WatchFaults()), OpenWatch("/nodes", late)]


async def test_an_api_server_that_is_away_breaks_watches_and_answers_nothing(
    proxy: FaultProxy, component: aiohttp.ClientSession
) -> None:
    async with component.get("/pods?watch=1") as response:
        assert await response.content.readline() == b"one\n"
        await asyncio.to_thread(proxy.go_away)
        with pytest.raises(aiohttp.ClientError):
            await response.content.readline()
    with pytest.raises(aiohttp.ClientError):
        await component.get("/pods")
    proxy.reset()
    async with component.get("/pods") as response:
        assert response.status == 200


async def chunked(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


@pytest.mark.parametrize(
    ("faults", "expected"),
    [
        (WatchFaults(), b'1\n2\n{"type":"BOOKMARK"}\n3\n'),
        (WatchFaults(delay_s=0.01), b'1\n2\n{"type":"BOOKMARK"}\n3\n'),
        (WatchFaults(shuffle=doubled, gather_s=0.01), b'1\n2\n{"type":"BOOKMARK"}\n3\n1\n2\n3\n'),
        (WatchFaults(shuffle=reordered, gather_s=0.01), b'3\n2\n1\n{"type":"BOOKMARK"}\n'),
    ],
)
async def test_watches_that_are_late_doubled_or_reordered_keep_lines_whole(
    faults: WatchFaults, expected: bytes
) -> None:
    pieces = [b"1\n", b"2", b'\n{"type":"BOO', b'KMARK"}\n3\n']
    got = [chunk async for chunk in late_lines(chunked(*pieces), faults)]
    assert b"".join(got) == expected
