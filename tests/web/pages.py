"""Reads a page of `/metrics` as clients do that want text, and as those that take gzip."""

from __future__ import annotations

import gzip

from hami.web.card_metrics import Page
from hami.web.streamed import Turns, gzipped, plain


async def plain_page(page: Page) -> bytes:
    turns = Turns()
    return b"".join([chunk async for chunk in plain(page.pieces(turns), turns)])


async def gzipped_page(page: Page) -> bytes:
    """Unpacked. Raises gzip.BadGzipFile, EOFError where the stream is not one whole gzip stream."""
    turns = Turns()
    return gzip.decompress(b"".join([chunk async for chunk in gzipped(page.pieces(turns), turns)]))
