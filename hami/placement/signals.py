"""Wakes waiters when a node or a pod changed, instead of polling."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class Signals:
    """Keys are texts such as `node/n1` and `pod/ns/name`."""

    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = {}

    def fire(self, key: str) -> None:
        if self._waiters:
            for event in self._waiters.get(key, ()):
                event.set()

    async def wait(self, keys: Iterable[str], timeout_s: float) -> bool:
        """Returns when one of the keys fires or after the timeout, whichever comes first; whether one fired."""
        event = asyncio.Event()
        keys = tuple(keys)
        for key in keys:
            self._waiters.setdefault(key, set()).add(event)
        try:
            async with asyncio.timeout(max(timeout_s, 0.0)):
                return await event.wait()
        except TimeoutError:
            return False
        finally:
            for key in keys:
                waiters = self._waiters[key]
                waiters.discard(event)
                if not waiters:
                    del self._waiters[key]
