"""The few ASGI moves that the hot routes need: read a body within a limit, answer, notice that the client left.

Hot routes are bare ASGI because a framework's routing and models cost twice the request itself (spec/performance 2.2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeVar

from hami.core.errors import HamiError

_T = TypeVar("_T")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON: Final = (b"content-type", b"application/json")
TEXT: Final = (b"content-type", b"text/plain; charset=utf-8")


class BodyTooLargeError(HamiError):
    """The request body is longer than the route takes."""


class ClientGoneError(HamiError):
    """The client closed the connection before its answer was ready."""


async def read_body(receive: Receive, limit_bytes: int) -> bytes:
    """The whole body. Raises BodyTooLargeError, ClientGoneError."""
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError("the client left while it sent its request")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit_bytes:
            raise BodyTooLargeError(f"the request body is larger than {limit_bytes} bytes")
        if not message.get("more_body", False):
            return chunk if not chunks else b"".join([*chunks, chunk])
        chunks.append(chunk)


async def answer(
    send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes], content_type: tuple[bytes, bytes] = JSON
) -> None:
    """Sends one whole response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [content_type, length, *headers]})
    await send({"type": "http.response.body", "body": body})


async def until_client_leaves(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Runs `work`; cancels it when the client goes away first. Raises ClientGoneError then.

    Work that must not stop half-way shields itself (placement.bind does after its first write).
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is None:
            return task.result()
        raise ClientGoneError("the client left before the work began to write")
    finally:
        watcher.cancel()
        task.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
