"""Filters give way to binds that write, for a moment (issue 6, pods a second).

kube-scheduler filters one pod after another and binds beside that, each bind on a connection of its own, of which it
keeps two. Where filters run ahead, every bind is one more TLS handshake for both sides, and all binds together wait for
the API server while each holds its node's token. A filter that waits for the end of one bind keeps both in step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from hami.placement.signals import Signals

_WRITING: Final = 12
"""Binds at once that keep any API server busy: with 10 ms for each write they are 600 pods a second."""
_PAUSE_S: Final = 0.01
"""Longest wait of one filter: a slow API server slows binds, not filters (design 4, promise 7)."""
_ENDED: Final = "bind"


class Pace:
    """Counts binds that write."""

    __slots__ = ("_signals", "_writing")

    def __init__(self, signals: Signals) -> None:
        self._signals = signals
        self._writing = 0

    @property
    def ahead(self) -> bool:
        """Whether filters run ahead of binds."""
        return self._writing >= _WRITING

    @contextmanager
    def write(self) -> Iterator[None]:
        """For the length of one bind's writes."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1
            self._signals.fire(_ENDED)

    async def give_way(self) -> None:
        """Waits until fewer binds write, for a moment at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PAUSE_S):
                while self.ahead:
                    await self._signals.wait((_ENDED,), _PAUSE_S)
