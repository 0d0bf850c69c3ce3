"""Health, version and metrics of a device plugin, as bare ASGI: the frameworks of the scheduler's face would cost every
GPU node 30 MiB for four routes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from hami import __version__
from hami.web import asgi

_EXPOSITION: Final = (b"content-type", b"text/plain; version=0.0.4")


def plugin_app(ready: Callable[[], str], counters: Callable[[], Mapping[str, float]]) -> asgi.App:
    """`ready` says what is missing, empty when ready; `counters` gives metric names without their prefix."""

    async def app(scope: asgi.Scope, _: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] != "http":
            return
        if scope["method"] not in ("GET", "HEAD"):
            await asgi.answer(send, 405, b"", (b"allow", b"GET"), content_type=asgi.TEXT)
            return
        status, body, content_type = _answered(scope["path"], ready, counters)
        await asgi.answer(send, status, body, content_type=content_type)

    return app


def _answered(
    path: str, ready: Callable[[], str], counters: Callable[[], Mapping[str, float]]
) -> tuple[int, bytes, tuple[bytes, bytes]]:
    if path == "/healthz":
        return 200, b"", asgi.TEXT
    if path == "/readyz":
        missing = ready()
        return 503 if missing else 200, missing.encode(), asgi.TEXT
    if path == "/version":
        return 200, msgspec.json.encode({"version": __version__}), asgi.JSON
    if path == "/metrics":
        return 200, _exposed(counters()).encode(), _EXPOSITION
    return 404, b"known are /healthz, /readyz, /version and /metrics", asgi.TEXT


def _exposed(counters: Mapping[str, float]) -> str:
    return "".join(
        f"# TYPE hami_plugin_{name} gauge\nhami_plugin_{name} {value:g}\n" for name, value in counters.items()
    )
