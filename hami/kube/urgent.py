"""Requests that others give way to: the writes of binds. Events are written between them (design 5, issue 6)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

QUIET_S: Final = 0.01
"""No urgent request for so long: the API server has time for others. Binds one after another leave such gaps; a burst
leaves none, and there each event would take the place of a Binding."""


class Urgent:
    """Knows whether urgent requests are under way."""

    def __init__(self) -> None:
        self._under_way = 0
        self._ended_s = 0.0

    @contextmanager
    def request(self) -> Iterator[None]:
        """For the length of one urgent request."""
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1
            self._ended_s = time.monotonic()

    async def quiet(self, until_s: float) -> None:
        """Returns when nothing urgent has been under way for a moment, or at `until_s` (monotonic seconds)."""
        while (now_s := time.monotonic()) < until_s:
            wait_s = QUIET_S if self._under_way else self._ended_s + QUIET_S - now_s
            if wait_s <= 0:
                return
            await asyncio.sleep(min(wait_s, until_s - now_s))
