"""The application behind every listener: hot routes as bare ASGI, everything else by FastAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from fastapi import FastAPI, Response

from hami import __version__
from hami.web import asgi
from hami.web.extender import Extender
from hami.web.webhook import Webhook


def build(
    extender: Extender,
    webhook: Webhook,
    ready: Callable[[], str],
    verbs: Mapping[str, asgi.App] = MappingProxyType({}),
) -> asgi.App:
    """`ready` says in words what is missing, empty when this replica is ready (design 5: true when synced). `verbs`:
    more of kube-scheduler's verbs, by path."""
    ops = ops_app(ready)
    hot: dict[str, asgi.App] = {"/filter": extender.filter, "/bind": extender.bind, "/webhook": webhook, **verbs}

    async def app(scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        route = hot.get(scope.get("path", "")) if scope["type"] == "http" else None
        if route is None:
            await ops(scope, receive, send)
        elif scope["method"] != "POST":
            allow = (b"allow", b"POST")
            await asgi.answer(send, 405, b"Method Not Allowed\n", allow, content_type=asgi.TEXT)
        else:
            await route(scope, receive, send)

    return app


def ops_app(ready: Callable[[], str]) -> FastAPI:
    """Health and version routes."""
    app = FastAPI(title="hami", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/healthz")
    async def healthz() -> Response:
        return Response(status_code=200)

    @app.get("/readyz")
    async def readyz() -> Response:
        missing = ready()
        return Response(missing, status_code=503 if missing else 200, media_type="text/plain")

    @app.get("/version")
    async def version() -> dict[str, str]:
        return {"version": __version__}

    return app
