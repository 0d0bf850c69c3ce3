"""Raw calls to kube-apiserver: bytes in, bytes out, with a time limit on every call and errors of `hami.core`.

One keep-alive pool, one client-side limit per lane, Retry-After honoured where repeating is harmless. Sources:
spec/ecosystem 2.2, design 5 (50/100 requests, own lanes for binds and events), contract 3.4 (`--kube-qps`,
`--kube-burst`, `--kube-timeout`).
"""

from __future__ import annotations

import asyncio
import email.utils
import random
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

import aiohttp
import structlog
from yarl import URL

from hami import __version__
from hami.core.errors import ApiError, ConfigError, TransportError
from hami.kube.access import Access, load_access
from hami.kube.lines import LineSplitter
from hami.kube.ratelimit import WIDE_LANES, Lane, bucket_for
from hami.kube.status import error_from
from hami.kube.urgent import Urgent

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

DEFAULT_QPS: Final = 50.0
DEFAULT_BURST: Final = 100
DEFAULT_TIMEOUT_S: Final = 10.0

_MAX_ATTEMPTS: Final = 5
_MAX_RETRY_AFTER_S: Final = 30.0
_DEFAULT_RETRY_AFTER_S: Final = 1.0
_KEEPALIVE_S: Final = 90.0
_READ_BUFFER_BYTES: Final = 256 * 1024
_TCP_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000),
)
"""A peer that vanished without a word is noticed within about 30 s, also under a silent watch."""


_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)
"""For calls whose limit is set around all their attempts."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class ClientStats:
    """Counters since start, for metrics."""

    requests: int = 0
    retries: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    url: URL
    body: bytes | None
    content_type: str
    repeatable: bool


class ApiClient:
    """A connection pool to one API server. Use as an async context manager, or `close()` it."""

    def __init__(
        self,
        access: Access,
        *,
        qps: float = DEFAULT_QPS,
        burst: int = DEFAULT_BURST,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._buckets = {lane: bucket_for(lane, qps, burst) for lane in Lane}
        self._session: aiohttp.ClientSession | None = None
        self._refreshing = asyncio.Lock()
        self._credentials_version = 0
        self.stats = ClientStats()
        self._answered_at = ""
        self.urgent = Urgent()
        """Binds that write."""

    @classmethod
    async def load(
        cls,
        kubeconfig: str | None,
        qps: float = DEFAULT_QPS,
        burst: int = DEFAULT_BURST,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> ApiClient:
        """A client from a kubeconfig, the default kubeconfig, or the pod's service account. Raises ConfigError."""
        return cls(await load_access(kubeconfig), qps=qps, burst=burst, timeout_s=timeout_s)

    @property
    def server(self) -> str:
        return self._access.server

    @property
    def server_unix_s(self) -> float | None:
        """The API server's clock at its last answer, in whole seconds; None where it did not say."""
        try:
            return email.utils.parsedate_to_datetime(self._answered_at).timestamp()
        except ValueError:
            return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the pool; calls in flight fail with TransportError."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = JSON,
        params: Mapping[str, str] | None = None,
        *,
        lane: Lane = Lane.DEFAULT,
        idempotent: bool | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """One call. Returns the body of a 2xx answer.

        `idempotent` says that the call may be repeated after 429, 503 with Retry-After, or a broken connection; it
        defaults to true for GET only. `timeout_s` bounds the whole call with its repeats and its wait for the lane.
        Raises ApiError (or the subclass for the status) and TransportError.
        """
        repeatable = method == "GET" if idempotent is None else idempotent
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        call = _Call(method, self._url(path, params), body, content_type, repeatable)
        try:
            async with asyncio.timeout(limit_s):
                await self._buckets[lane].acquire()
                if lane not in WIDE_LANES:
                    return await self._attempts(call)
                with self.urgent.request():
                    return await self._attempts(call)
        except TimeoutError as error:
            self.stats.failures += 1
            raise TransportError(f"{method} {path}: no answer within {limit_s:g} s") from error

    async def stream_lines(
        self, path: str, params: Mapping[str, str], *, idle_timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """GET that stays open (a watch): yields the lines of the body, without their newline.

        Ends when the server ends it. Raises ApiError for a failure status; TransportError when the connection breaks
        or nothing arrives for `idle_timeout_s`.
        """
        await self._buckets[Lane.DEFAULT].acquire()
        timeout = aiohttp.ClientTimeout(total=None, connect=self._timeout_s, sock_read=idle_timeout_s)
        call = _Call("GET", self._url(path, params), None, JSON, repeatable=False)
        version = self._credentials_version
        splitter = LineSplitter()
        try:
            async with self._send(call, timeout) as response:
                if response.status >= 300:
                    if response.status == 401:
                        await self._refresh(version)
                    raise error_from(response.status, await response.read(), response.headers.get("Retry-After", ""))
                async for chunk in response.content.iter_any():
                    for line in splitter.feed(chunk):
                        yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise TransportError(f"watch {path}: {_text(error)}") from error

    async def _attempts(self, call: _Call) -> bytes:
        refreshed = False
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            version = self._credentials_version
            try:
                return await self._once(call)
            except ApiError as error:
                if error.status == 401 and not refreshed and await self._refresh(version):
                    refreshed = True
                    continue
                if not _worth_repeating(error, call, attempt):
                    self.stats.failures += 1
                    raise
                wait_s = min(error.retry_after_s or _DEFAULT_RETRY_AFTER_S, _MAX_RETRY_AFTER_S)
            except TransportError:
                if not call.repeatable or attempt == _MAX_ATTEMPTS:
                    self.stats.failures += 1
                    raise
                wait_s = 0.05 * 2**attempt
            self.stats.retries += 1
            # Up to half more, so that clients that were refused together do not come back together.
            await asyncio.sleep(wait_s * (1 + random.random() / 2))  # noqa: S311
        raise AssertionError("the last attempt returns or raises")

    async def _once(self, call: _Call) -> bytes:
        self.stats.requests += 1
        try:
            async with self._send(call, _NO_LIMIT) as response:
                body = await response.read()
                self._answered_at = response.headers.get("Date", "")
                if response.status < 300:
                    return body
                raise error_from(response.status, body, response.headers.get("Retry-After", ""))
        except TimeoutError:
            raise
        except (aiohttp.ClientError, OSError) as error:
            raise TransportError(f"{call.method} {call.url.path}: {_text(error)}") from error

    @asynccontextmanager
    async def _send(self, call: _Call, timeout: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {}
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        authorization = await self._access.authorization()
        if authorization:
            headers["Authorization"] = authorization
        response = await self._pool().request(
            call.method,
            call.url,
            data=call.body,
            headers=headers,
            timeout=timeout,
            server_hostname=self._access.tls_server_name,
            proxy=self._access.proxy,
            allow_redirects=False,
        )
        try:
            yield response
        finally:
            response.release()

    async def _refresh(self, seen_version: int) -> bool:
        """Reads credentials again, once for all calls that were refused with the same ones."""
        async with self._refreshing:
            if self._credentials_version == seen_version:
                try:
                    if not await self._access.refresh():
                        return False
                except ConfigError as error:
                    # The 401 is the answer then: what cannot be read now may be readable at the next call.
                    log.warning("credentials not read again", why=str(error))
                    return False
                self._credentials_version += 1
            return True

    def _url(self, path: str, params: Mapping[str, str] | None) -> URL:
        url = URL(self._access.server + path, encoded=True)
        return url.with_query(dict(params)) if params else url

    def _pool(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                ssl=self._access.tls if self._access.tls is not None else True,
                keepalive_timeout=_KEEPALIVE_S,
                socket_factory=_open_socket,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BUFFER_BYTES,
                # No gzip: on a cluster network it only costs both sides CPU.
                headers={"User-Agent": f"hami/{__version__}", "Accept": JSON, "Accept-Encoding": "identity"},
            )
        return self._session


def _worth_repeating(error: ApiError, call: _Call, attempt: int) -> bool:
    if not call.repeatable or attempt == _MAX_ATTEMPTS:
        return False
    return error.status == 429 or (error.status in (500, 503, 504) and error.retry_after_s > 0)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _open_socket(address: tuple[int, int, int, str, tuple[object, ...]]) -> socket.socket:
    family, kind, protocol = address[:3]
    opened = socket.socket(family=family, type=kind, proto=protocol)
    for level, option, value in _TCP_KEEPALIVE:
        opened.setsockopt(level, option, value)
    return opened
