"""Background work of a stand-in that must not fail unseen."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, Final

_CANCEL_AGAIN_S: Final = 1.0
_log = logging.getLogger("hami.sim")


class TaskSet:
    """Tasks that end together. A crash is logged when it happens and raised by `stop`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._crash: BaseException | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a stand-in crashed", exc_info=error)
            self._crash = self._crash or error

    async def stop(self) -> None:
        """Cancel everything and wait. Raises what a task has crashed with."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            # Again after a while: a library below may have swallowed a cancellation.
            await asyncio.wait(list(self._tasks), timeout=_CANCEL_AGAIN_S)
        if self._crash is not None:
            raise self._crash
