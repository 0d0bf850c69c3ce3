"""A route's answer in chunks, for FastAPI's routes. Not beside the bare ones, which node processes load without it."""

from __future__ import annotations

from collections.abc import AsyncIterator

from fastapi import Response

from hami.web import asgi


class Streamed(Response):
    """A response whose body comes in chunks. Starlette's own starts a group of tasks for each, and its first one loads
    modules for 30 ms while everybody waits."""

    def __init__(self, chunks: AsyncIterator[bytes], content_type: str) -> None:
        super().__init__(None)
        self._chunks = chunks
        self._content_type = content_type.encode("latin-1")

    async def __call__(self, _scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
        headers = [(b"content-type", self._content_type)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
