"""One first-come-first-served queue per node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hami.placement.bind_error import contention
from hami.placement.crowd import Crowd
from hami.placement.ports import Clock


class NodeQueues:
    """Only the head of a node's queue deals with the node's token."""

    def __init__(self, crowd: Crowd, clock: Clock) -> None:
        """`crowd` is told of the queues."""
        self._crowd = crowd
        self._clock = clock
        self._locks: dict[str, asyncio.Lock] = {}
        self._users: dict[str, int] = {}

    def waiting(self, node: str) -> int:
        """Calls that wait for or hold their turn."""
        return self._users.get(node, 0)

    @asynccontextmanager
    async def turn(self, node: str, timeout_s: float) -> AsyncIterator[None]:
        """The caller's turn. Raises BindError if it does not come in time."""
        lock = self._locks.setdefault(node, asyncio.Lock())
        self._users[node] = self._users.get(node, 0) + 1
        self._crowd.look(node, self._users[node], timeout_s)
        try:
            try:
                async with asyncio.timeout(max(timeout_s, 0.0)):
                    await lock.acquire()
            except TimeoutError as error:
                raise contention(node, f"{self._users[node] - 1} calls ahead or behind") from error
            began_s = self._clock.monotonic_s()
            try:
                yield
            finally:
                lock.release()
                self._crowd.took(node, self._clock.monotonic_s() - began_s)
        finally:
            self._users[node] -= 1
            self._crowd.look(node, self._users[node], timeout_s)
            if not self._users[node]:
                del self._users[node], self._locks[node]
