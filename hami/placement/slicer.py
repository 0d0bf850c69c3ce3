"""When bulk work gives way to other tasks (design 4, promise 7: no slice above 5 ms)."""

from __future__ import annotations

import asyncio
from typing import Final

from hami.placement.ports import Clock

SLICE_S: Final = 0.0015
"""Bulk work gives way after this long. A step that cannot be cut, such as columns that grow, may come on top."""


class Slicer:
    """Tells bulk work when to give way."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_s = clock.monotonic_s() + SLICE_S

    @property
    def due(self) -> bool:
        return self._clock.monotonic_s() >= self._until_s

    async def give_way(self) -> None:
        """Lets other tasks run if the slice is used up."""
        if self.due:
            await asyncio.sleep(0)
            self._until_s = self._clock.monotonic_s() + SLICE_S
