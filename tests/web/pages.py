"""Reads a page of `/metrics` as clients do that want text, and as those that take gzip."""

from __future__ import annotations

import asyncio
import gzip

from hami.web.card_metrics import Page
from hami.web.streamed import Turns, gzipped, plain


class Hurry(Turns):
    """Gives way at each occasion, and rests at none."""

    async def give_way(self) -> None:
        await asyncio.sleep(0)


async def plain_page(page: Page) -> bytes:
    turns = Hurry()
    return b"".join([chunk async for chunk in plain(page.pieces(turns), turns)])


async def gzipped_page(page: Page) -> bytes:
    """Unpacked. Raises gzip.BadGzipFile, EOFError where the stream is not one whole gzip stream."""
    turns = Hurry()
    return gzip.decompress(b"".join([chunk async for chunk in gzipped(page.pieces(turns), turns)]))
