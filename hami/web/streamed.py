"""A route's answer in chunks, for FastAPI's routes. Not beside the bare ones, which node processes load without it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from fastapi import Response

from hami.web import asgi
from hami.web.deflated import GZIP_HEAD, Piece, Plain, Trailer

_SLICE_S: Final = 0.0003
_PAUSE_S: Final = 0.001
"""A page is in no hurry and a filter is: a short slice, then a moment in which whatever came is answered whole."""
_CHUNK_BYTES: Final = 64 * 1024


class Turns:
    """Tells the making of a page when to give way."""

    def __init__(self) -> None:
        self._until_s = time.monotonic() + _SLICE_S

    async def give_way(self) -> None:
        if time.monotonic() >= self._until_s:
            await asyncio.sleep(_PAUSE_S)
            self._until_s = time.monotonic() + _SLICE_S


def takes_gzip(accepted: str) -> bool:
    """Whether an Accept-Encoding header asks for gzip (RFC 9110, 12.5.3)."""
    for each in accepted.lower().split(","):
        coding, *parameters = (part.strip() for part in each.split(";"))
        if coding in ("gzip", "x-gzip"):
            return not any(part.replace(" ", "").rstrip("0.") == "q=" for part in parameters)
    return False


async def gzipped(pieces: AsyncIterator[Piece], turns: Turns) -> AsyncIterator[bytes]:
    """Pieces as one gzip stream."""
    trailer = Trailer()
    waiting, size = [GZIP_HEAD], 0
    async for piece in pieces:
        trailer.add(piece)
        waiting.append(piece.data)
        size += len(piece.data)
        if size >= _CHUNK_BYTES:
            for chunk in _chunks(b"".join(waiting)):
                yield chunk
                await turns.give_way()
            waiting, size = [], 0
    yield b"".join([*waiting, trailer.data()])


async def plain(pieces: AsyncIterator[Piece], turns: Turns) -> AsyncIterator[bytes]:
    """Pieces as the text that they hold."""
    inflate = Plain()
    async for piece in pieces:
        for chunk in inflate.texts(piece.data, _CHUNK_BYTES):
            yield chunk
            await turns.give_way()


def _chunks(data: bytes) -> list[bytes]:
    return [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)]


class Streamed(Response):
    """A response whose body comes in chunks. Starlette's own starts a group of tasks for each, and its first one loads
    modules for 30 ms while everybody waits."""

    def __init__(self, chunks: AsyncIterator[bytes], content_type: str, *, gzip: bool = False) -> None:
        super().__init__(None)
        self._chunks = chunks
        self._head = [(b"content-type", content_type.encode("latin-1")), (b"vary", b"accept-encoding")]
        if gzip:
            self._head.append((b"content-encoding", b"gzip"))

    async def __call__(self, _scope: asgi.Scope, _receive: asgi.Receive, send: asgi.Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self._head})
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
