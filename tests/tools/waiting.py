"""Waits for what another task or process has to bring about, with a deadline instead of a guess how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0
"""Long enough for any machine; what it takes on a sound one is milliseconds."""
_POLL_S = 0.002


async def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Polls until `condition` holds. AssertionError with `what` was awaited at the deadline."""

    async def ask() -> object:
        return condition()

    await until_answered(ask, what, deadline_s)


async def until_answered(ask: Callable[[], Awaitable[object]], what: str, deadline_s: float = DEADLINE_S) -> None:
    """The same for what has to be awaited: the state of a server or of another process."""
    try:
        async with asyncio.timeout(deadline_s):
            while not await ask():  # noqa: ASYNC110 - any condition, not only ours to signal
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise AssertionError(f"not within {deadline_s} s: {what}") from None
