"""Watches as a bad network or a busy API server gives them: late, doubled, out of order. Lines stay whole."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

Shuffle = Callable[[list[bytes]], list[bytes]]


def as_they_are(lines: list[bytes]) -> list[bytes]:
    return lines


def doubled(lines: list[bytes]) -> list[bytes]:
    """Each event twice, the second time after its successors."""
    return [*lines, *(line for line in lines if not is_bookmark(line))]


def reordered(lines: list[bytes]) -> list[bytes]:
    """Backwards. A bookmark stays behind what it vouches for: no server sends it earlier."""
    events = [line for line in lines if not is_bookmark(line)]
    return [*reversed(events), *(line for line in lines if is_bookmark(line))]


def is_bookmark(line: bytes) -> bool:
    return line.startswith(b'{"type":"BOOKMARK"')


@dataclasses.dataclass(frozen=True, slots=True)
class WatchFaults:
    """`delay_s`: how late events arrive. `shuffle` gets what came within `gather_s`."""

    delay_s: float = 0.0
    shuffle: Shuffle = as_they_are
    gather_s: float = 0.0


async def late_lines(chunks: AsyncIterator[bytes], faults: WatchFaults) -> AsyncGenerator[bytes]:
    """What the watcher gets of `chunks`; ends and fails as they do."""
    if faults == WatchFaults():
        async for chunk in chunks:
            yield chunk
        return
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[tuple[float, list[bytes]]] = asyncio.Queue()
    reader = asyncio.ensure_future(_read(chunks, arrived))
    tasks: list[asyncio.Future[Any]] = [reader]
    try:
        while not (reader.done() and arrived.empty()):
            getter = asyncio.ensure_future(arrived.get())
            tasks[1:] = [getter]
            await asyncio.wait((getter, reader), return_when=asyncio.FIRST_COMPLETED)
            if not getter.done():
                break
            at_s, lines = getter.result()
            await asyncio.sleep(max(0.0, at_s + max(faults.delay_s, faults.gather_s) - loop.time()))
            while faults.gather_s and not arrived.empty():
                lines = [*lines, *arrived.get_nowait()[1]]
            yield b"".join(faults.shuffle(lines))
        await reader
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(chunks: AsyncIterator[bytes], arrived: asyncio.Queue[tuple[float, list[bytes]]]) -> None:
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            arrived.put_nowait((asyncio.get_running_loop().time(), [line + b"\n" for line in lines]))
