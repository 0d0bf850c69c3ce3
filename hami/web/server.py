"""Listeners: one uvicorn server an address, http or https, in the process's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import uvicorn

from hami.core.errors import ConfigError
from hami.web import asgi

KEEP_ALIVE_S: Final = 125
"""Go keeps two idle connections to a host for 90 s; each parallel bind beyond them is a handshake (design 6)."""


STOP_LIMIT_S: Final = 5.0
"""How long requests under way may take when the process ends."""


_PORT: Final = re.compile(r"[0-9]{1,5}")


class Address(msgspec.Struct, frozen=True):
    """Where to listen. `https` needs a TLS context. A host of "" means every interface; port 0 any free port."""

    https: bool
    host: str
    port: int


def parse_address(text: str, *, default_https: bool, flag: str) -> Address:
    """Reads `host:port`, `:port`, `[::1]:port`, with `http://` or `https://` before it. Raises ConfigError."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = ("https" if default_https else "http"), text
    host, colon, port = rest.rstrip("/").rpartition(":")
    if scheme not in ("http", "https") or not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(f"--{flag}: {text[:200]!r} is no address: expected [http://|https://]HOST:PORT")
    if (inner := host.removeprefix("[").removesuffix("]")) != host and f"[{inner}]" != host:
        raise ConfigError(f"--{flag}: {text[:200]!r} is no address: a [ without its ], or the other way round")
    return Address(scheme == "https", inner, int(port))


class Listener:
    """One bound socket and its server. The port is known before anything is served."""

    def __init__(self, address: Address, app: asgi.App, tls: ssl.SSLContext | None) -> None:
        context = tls if address.https else None
        if address.https and context is None:
            raise ConfigError(f"https on {address.host}:{address.port} needs --cert_file and --key_file")
        self._socket = _bind(address)
        self.port: int = self._socket.getsockname()[1]
        scheme = "https" if address.https else "http"
        host = f"[{address.host}]" if ":" in address.host else address.host or "0.0.0.0"
        self.url = f"{scheme}://{host}:{self.port}"
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_keep_alive=KEEP_ALIVE_S,
            http="httptools",
            ws="none",
            server_header=False,
            date_header=False,
            proxy_headers=False,
            ssl_context_factory=(lambda _config, _default: context) if context is not None else None,
        )
        config.load()
        self._server = _QuietServer(config)

    async def serve(self) -> None:
        """Serves until cancelled; requests under way get a few seconds to finish."""
        task = asyncio.ensure_future(self._server.serve(sockets=[self._socket]))
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._server.should_exit = True
            await asyncio.wait({task}, timeout=STOP_LIMIT_S)
            raise


class _QuietServer(uvicorn.Server):
    """uvicorn without its own signal handlers: the composition root handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


def _bind(address: Address) -> socket.socket:
    try:
        return _listening(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {address.host}:{address.port}: {error}") from error


def _listening(address: Address) -> socket.socket:
    everywhere = not address.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if everywhere or ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if everywhere:
            # As Go's ":443": a pod of an IPv6 cluster is reached by IPv6 only.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind((address.host, address.port))
        # Two that only bind may share a port; who listens first makes the other fail here, where it is told.
        bound.listen()
    except OSError:
        bound.close()
        raise
    return bound


@contextlib.asynccontextmanager
async def serving(listeners: Sequence[Listener]) -> AsyncIterator[None]:
    """Serves all listeners for the length of the block."""
    tasks = [asyncio.ensure_future(listener.serve()) for listener in listeners]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
