"""A counting fault proxy between one component and kube-apiserver.

The component's kubeconfig names the proxy; the proxy ends TLS with a certificate of the cluster's authority and
forwards every request with the component's own client certificate, so that permissions stay the component's own.
It numbers the writes (every method but GET and HEAD) and can, for chosen ones, run a callback before or after they
reach the API server (a kill, typically), lose the answer, answer by itself, or delay; and it can cut open watches.

    proxy = FaultProxy(upstream, authority_cert, serving_pair, client_pair)
    proxy.start()
    proxy.add(Fault(when="before", number=3, callback=scheduler.kill))
    ... proxy.writes ...
    proxy.stop()

A small HTTP port (`admin_url`) offers the same to shells: GET /writes, POST /faults (fields of Fault as JSON),
POST /cut-watches, POST /reset.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import http
import re
import ssl
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import ClientResponse, ClientSession, ClientTimeout, TCPConnector, web
from yarl import URL

from tests.tools.proxy_faults import READS, Fault, When, Write
from tests.tools.watch_faults import WatchFaults, late_lines

HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding", "upgrade", "host", "content-length")
LOOP_TIMEOUT_S = 120.0
"""For what the proxy's own thread does; a busy machine may let it wait."""
CLOSING_ROUNDS = 20


@dataclasses.dataclass(frozen=True, slots=True)
class _Place:
    """Where a write stands: in the list since which reset, and its number there."""

    writes: list[Write]
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class OpenWatch:
    """A watch that the API server answers: what is watched, and how its events are harmed."""

    path: str
    faults: WatchFaults


class FaultProxy:
    """The proxy, on an event loop of its own thread; every public method may be called from any thread."""

    def __init__(
        self, upstream: str, authority: Path, serving: tuple[Path, Path], client: tuple[Path, Path] | None
    ) -> None:
        """`upstream` is the API server's URL; `serving` and `client` are (certificate, key) as PEM files."""
        self._upstream = upstream.rstrip("/")
        self._server_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server_tls.load_cert_chain(*map(str, serving))
        self._client_tls = ssl.create_default_context(cafile=str(authority))
        if client is not None:
            self._client_tls.load_cert_chain(*map(str, client))
        self._lock = threading.Lock()
        self._writes: list[Write] = []
        self._faults: list[Fault] = []
        self._requests: Counter[str] = Counter()
        self._watches: dict[asyncio.Task[Any], OpenWatch | None] = {}
        self._away = False
        self._watch_faults = WatchFaults()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._session: ClientSession | None = None
        self._runners: list[web.AppRunner] = []
        self._served: web.Application | None = None
        """Of the newest `url`."""
        self.url = ""
        self.admin_url = ""

    def start(self) -> None:
        """Listen on two free loopback ports; afterwards `url` and `admin_url` are set."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(LOOP_TIMEOUT_S)

    def stop(self) -> None:
        """Break all connections and end the thread."""
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(LOOP_TIMEOUT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(LOOP_TIMEOUT_S)
        self._loop.close()

    @property
    def writes(self) -> list[Write]:
        """Writes since the last reset, in the order of arrival."""
        with self._lock:
            return list(self._writes)

    @property
    def requests(self) -> Counter[str]:
        """Requests since the last reset as `METHOD kind`, reads included, watches not."""
        with self._lock:
            return Counter(self._requests)

    def add(self, fault: Fault) -> Fault:
        """Arm a fault; `fault.times` tells later whether it struck."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def reset(self) -> None:
        """Count from one again and disarm every fault."""
        with self._lock:
            self._writes = []  # an answer that is late is for the old list
            self._requests.clear()
            self._faults.clear()
        self._away = False
        self._watch_faults = WatchFaults()

    @property
    def open_watches(self) -> list[OpenWatch]:
        """Watches that are being answered."""
        with self._lock:
            return [watch for watch in self._watches.values() if watch is not None]

    def listen_anew(self) -> None:
        """Give `url` another port, and count from one again with no fault armed. What was asked at the old one is not
        answered any more and meets no fault, a request or an answer that is on its way included: nothing that a dead
        component left behind is taken for its successor's."""
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(LOOP_TIMEOUT_S)
        self.reset()

    def harm_watches(self, faults: WatchFaults) -> None:
        """From now until `reset`, for watches that begin later."""
        self._watch_faults = faults

    def go_away(self) -> None:
        """The API server vanishes: open watches break, new requests meet a broken connection until `reset`."""
        self._away = True
        self.cut_watches()

    def cut_watches(self) -> int:
        """Break every open watch; returns how many there were."""

        async def cut() -> int:
            return self._cut()

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result(LOOP_TIMEOUT_S)

    def _cut(self) -> int:
        """On the loop's thread."""
        watches = list(self._watches)
        for watch in watches:
            watch.cancel()
        return len(watches)

    async def _start(self) -> None:
        connector = TCPConnector(ssl=self._client_tls, limit=0)
        self._session = ClientSession(
            connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False, read_bufsize=2**18
        )
        await self._serve()
        admin = web.Application()
        admin.router.add_get("/writes", self._admin_writes)
        admin.router.add_post("/faults", self._admin_faults)
        admin.router.add_post("/cut-watches", self._admin_cut)
        admin.router.add_post("/reset", self._admin_reset)
        self.admin_url = await self._listen(admin, None)

    async def _serve(self) -> None:
        proxied = web.Application(client_max_size=2**24)
        proxied.router.add_route("*", "/{path:.*}", self._handle)
        url = await self._listen(proxied, self._server_tls)
        self._served, self.url = proxied, url

    async def _listen(self, application: web.Application, tls: ssl.SSLContext | None) -> str:
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        self._runners.append(runner)
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        host, port = runner.addresses[0][:2]
        return f"{'https' if tls else 'http'}://{host}:{port}"

    async def _stop(self) -> None:
        self._cut()
        for runner in self._runners:
            await runner.cleanup()
        assert self._session is not None
        if isinstance(self._session.connector, TCPConnector):
            await self._session.connector.close(abort_ssl=True)
        await self._session.close()
        for _ in range(CLOSING_ROUNDS):
            await asyncio.sleep(0.01)  # aborted transports close their sockets in the loop's next rounds

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if self._away or request.app is not self._served:
            self._break(request)
            return web.Response(status=http.HTTPStatus.BAD_GATEWAY)
        write = self._record(request)
        body = await request.read()
        fault = self._take("before", request, write, body)
        if fault is not None:
            answer = await self._apply(fault, request)
            if answer is not None:
                return answer
        return await self._forward(request, body, write)

    async def _forward(self, request: web.Request, body: bytes, write: _Place | None) -> web.StreamResponse:
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP}
        task = asyncio.current_task()
        assert task is not None
        is_watch = "watch" in request.query
        if is_watch:
            self._note_watch(task, None)
        try:
            async with self._session.request(
                request.method, URL(self._upstream + request.raw_path, encoded=True), data=body or None, headers=headers
            ) as upstream:
                if write is not None:
                    self._settle(write, upstream.status)
                fault = self._take("after", request, write, body)
                answer = await self._apply(fault, request) if fault is not None else None
                if answer is not None:
                    return answer
                kept = {name: value for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP}
                response = web.StreamResponse(status=upstream.status, headers=kept)
                await response.prepare(request)
                watch_faults = self._watch_faults if is_watch else WatchFaults()
                if is_watch:
                    self._note_watch(task, OpenWatch(request.path, watch_faults))
                async with contextlib.aclosing(late_lines(upstream.content.iter_any(), watch_faults)) as chunks:
                    try:
                        async for chunk in chunks:
                            await response.write(chunk)
                    except asyncio.CancelledError:
                        _abort(upstream)  # a polite end would wait for an answer that may come after the test
                        raise
                await response.write_eof()
                return response
        except asyncio.CancelledError:
            self._break(request)
            raise
        finally:
            with self._lock:
                self._watches.pop(task, None)

    def _note_watch(self, task: asyncio.Task[Any], watch: OpenWatch | None) -> None:
        with self._lock:
            self._watches[task] = watch

    async def _apply(self, fault: Fault, request: web.Request) -> web.StreamResponse | None:
        """Do what the fault says; an answer when the request ends here."""
        if fault.delay_s:
            await asyncio.sleep(fault.delay_s)
        if fault.callback is not None:
            await asyncio.get_running_loop().run_in_executor(None, fault.callback)
        if fault.hold is not None:
            await asyncio.get_running_loop().run_in_executor(None, fault.hold.wait)
        if fault.breaks_connection:
            self._break(request)
            return web.Response(status=http.HTTPStatus.BAD_GATEWAY)  # nobody reads it: the connection is gone
        if fault.status is not None:
            status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": fault.status}
            status |= {"message": "injected by the fault proxy", "reason": _reason(fault.status)}
            headers = {"Retry-After": "1"} if fault.status == http.HTTPStatus.TOO_MANY_REQUESTS else {}
            return web.json_response(status, status=fault.status, headers=headers)
        return None

    def _record(self, request: web.Request) -> _Place | None:
        """Count the request; where a write stands."""
        with self._lock:
            if "watch" not in request.query:
                self._requests[f"{request.method} {_kind(request.path)}"] += 1
            if request.method in READS:
                return None
            place = _Place(self._writes, len(self._writes) + 1)
            self._writes.append(Write(place.number, request.method, request.path))
            return place

    def _settle(self, place: _Place, status: int) -> None:
        with self._lock:
            place.writes[place.number - 1] = dataclasses.replace(place.writes[place.number - 1], status=status)

    def _take(self, when: When, request: web.Request, write: _Place | None, body: bytes) -> Fault | None:
        text = body.decode(errors="replace")
        with self._lock:
            number = write.number if write is not None and write.writes is self._writes else None
            for fault in self._faults if request.app is self._served else ():
                if fault.strikes(when, request.method, request.path_qs, number, text):
                    fault.met += 1
                    if fault.met % fault.every:
                        continue
                    fault.times -= 1
                    fault.struck += 1
                    return fault
        return None

    @staticmethod
    def _break(request: web.Request) -> None:
        if request.transport is not None:
            request.transport.abort()

    async def _admin_writes(self, request: web.Request) -> web.Response:
        return web.json_response([dataclasses.asdict(write) for write in self.writes])

    async def _admin_faults(self, request: web.Request) -> web.Response:
        self.add(Fault(**await request.json()))
        return web.json_response({})

    async def _admin_cut(self, request: web.Request) -> web.Response:
        return web.json_response({"cut": self._cut()})

    async def _admin_reset(self, request: web.Request) -> web.Response:
        self.reset()
        return web.json_response({})


def _abort(upstream: ClientResponse) -> None:
    """Break the connection to the API server."""
    if upstream.connection is not None and upstream.connection.transport is not None:
        upstream.connection.transport.abort()


def _kind(path: str) -> str:
    """What a path is about, without names: `nodes/NAME` is `node`, `pods/NAME/binding` is `binding`."""
    tail = re.sub(r"^/(api|apis/[^/]+)/[^/]+/(namespaces/[^/]+/)?", "", path).split("/")
    return tail[-1] if len(tail) > 2 else tail[0] if len(tail) == 1 else tail[0].removesuffix("s")


def _reason(status: int) -> str:
    """Kubernetes' reason word for the statuses that tests inject."""
    reasons = {404: "NotFound", 409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 504: "Timeout"}
    return reasons.get(status, "")
