"""Ways to call `/filter` and `/webhook`: in process through the ASGI application, and over TLS keep-alive."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

App = Callable[..., Any]


class AppCaller:
    """Calls an ASGI application in this process, without sockets."""

    def __init__(self, app: App, loop: asyncio.AbstractEventLoop) -> None:
        self._app = app
        self._loop = loop

    def post(self, path: str, body: bytes) -> bytes:
        return self._loop.run_until_complete(self._post(path, body))

    async def timed(self, path: str, bodies: Sequence[bytes]) -> list[float]:
        """Microseconds of each call."""
        taken = []
        for body in bodies:
            start = time.perf_counter_ns()
            await self._post(path, body)
            taken.append((time.perf_counter_ns() - start) / 1000)
        return taken

    def time_all(self, path: str, bodies: Sequence[bytes]) -> list[float]:
        return self._loop.run_until_complete(self.timed(path, bodies))

    async def _post(self, path: str, body: bytes) -> bytes:
        sent: list[bytes] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])

        await self._app(scope, receive, send)
        return b"".join(sent)


@dataclass(slots=True)
class WireCaller:
    """One keep-alive connection; `cafile` empty: the certificate is not checked (a peer's own certificate)."""

    url: str
    cafile: str = ""
    _socket: socket.socket | None = None

    def __enter__(self) -> Self:
        parts = urlsplit(self.url)
        https = parts.scheme == "https"
        raw = _connected((parts.hostname or "127.0.0.1", parts.port or (443 if https else 80)))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = self._context().wrap_socket(raw, server_hostname=parts.hostname) if https else raw
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._socket is not None:
            self._socket.close()

    def _context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.cafile or None)
        if not self.cafile:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def time_all(self, path: str, bodies: Sequence[bytes]) -> list[float]:
        """Microseconds of each call."""
        taken = []
        for body in bodies:
            start = time.perf_counter_ns()
            self.post(path, body)
            taken.append((time.perf_counter_ns() - start) / 1000)
        return taken

    def post(self, path: str, body: bytes) -> bytes:
        """The response body. Raises ConnectionError on a status other than 200."""
        assert self._socket is not None
        lines = (
            f"POST {path} HTTP/1.1",
            "Host: bench",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        )
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return self._read()

    def _read(self) -> bytes:
        assert self._socket is not None
        data = self._socket.recv(65536)
        while b"\r\n\r\n" not in data:
            more = self._socket.recv(65536)
            if not more:
                raise ConnectionError("the server closed the connection")
            data += more
        head, _, rest = data.partition(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
            raise ConnectionError(head.decode("latin-1"))
        headers = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:])
        if headers.get(b"transfer-encoding") == b"chunked":
            return self._chunked(rest)
        return self._more(rest, int(headers.get(b"content-length", b"0")))

    def _more(self, data: bytes, size: int) -> bytes:
        """At least so many bytes, of which some are here already."""
        assert self._socket is not None
        parts, have = [data], len(data)
        while have < size:
            part = self._socket.recv(262144)
            if not part:
                raise ConnectionError("the server closed the connection")
            parts.append(part)
            have += len(part)
        return b"".join(parts)

    def _chunked(self, data: bytes) -> bytes:
        """A body of chunks, as Go's servers send what is longer than 2 KiB."""
        body = b""
        while True:
            while b"\r\n" not in data:
                data = self._more(data, len(data) + 1)
            size, _, data = data.partition(b"\r\n")
            length = int(size.split(b";")[0], 16)
            data = self._more(data, length + 2)
            body, data = body + data[:length], data[length + 2 :]
            if not length:
                return body


def _connected(address: tuple[str, int]) -> socket.socket:
    """A connection; a server that has bound its port but does not listen yet gets a few seconds."""
    deadline = time.monotonic() + 5
    while True:
        try:
            return socket.create_connection(address, timeout=60)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
