"""The listener of a monitor: metrics, health, version. Bare ASGI: a node pays for no framework."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from prometheus_client import CONTENT_TYPE_LATEST

from hami import __version__
from hami.web import asgi

log = structlog.get_logger(__name__)

METRICS_TYPE: Final = (b"content-type", CONTENT_TYPE_LATEST.encode())


def monitor_app(scrape: Callable[[], Awaitable[bytes]], alive: Callable[[], str], ready: Callable[[], str]) -> asgi.App:
    """`alive` and `ready` say in words what is missing, empty when all is well."""

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        del receive
        path = scope.get("path", "") if scope["type"] == "http" else ""
        if path in ("/healthz", "/readyz"):
            missing = alive() if path == "/healthz" else ready()
            await asgi.answer(send, 503 if missing else 200, missing.encode(), content_type=asgi.TEXT)
        elif path == "/metrics":
            await _metrics(send, scrape)
        elif path == "/version":
            await asgi.answer(send, 200, f'{{"version":"{__version__}"}}'.encode())
        else:
            await asgi.answer(send, 404, b"Not Found\n", content_type=asgi.TEXT)

    return app


async def _metrics(send: asgi.Send, scrape: Callable[[], Awaitable[bytes]]) -> None:
    try:
        text = await scrape()
    except OSError as error:
        log.warning("metrics not gathered", why=str(error))
        await asgi.answer(send, 500, f"{error}\n".encode(), content_type=asgi.TEXT)
        return
    await asgi.answer(send, 200, text, content_type=METRICS_TYPE)
