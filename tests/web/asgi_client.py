"""Calls an ASGI application in process: one request in, status, headers and body out."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from hami.web import asgi


@dataclass
class Reply:
    """What the application answered."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


async def call(
    app: asgi.App,
    path: str,
    body: bytes = b"",
    *,
    method: str = "POST",
    query: str = "",
    content_type: str = "application/json",
    accept_encoding: str = "",
    leave: asyncio.Event | None = None,
) -> Reply:
    """One request. With `leave`, the client goes away when the event is set."""
    reply = Reply()
    parts: list[asgi.Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> asgi.Message:
        if parts:
            return parts.pop(0)
        await (leave or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: asgi.Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            reply.body += message.get("body", b"")

    told = {"content-type": content_type, "accept-encoding": accept_encoding}
    headers = [(name.encode(), value.encode()) for name, value in told.items() if value]
    scope: asgi.Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
        "scheme": "http",
        "root_path": "",
    }
    await app(scope, receive, send)
    return reply
