"""What every process does at its edge: real clocks, signals, tasks that live and die together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import structlog
from watchfiles import awatch

log = structlog.get_logger("hami.apps")


class SystemClock:
    """The machine's clocks behind `placement.ports.Clock`."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def unix_s(self) -> float:
        return time.time()


async def run_until_signal(work: Coroutine[Any, Any, None]) -> int:
    """Runs `work` until it fails or SIGINT/SIGTERM asks it to end; returns the exit status."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return 0


async def run_together(jobs: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Runs all jobs; the first failure cancels the others and is raised as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(job)
    except* Exception as failures:  # noqa: BLE001 - re-raised as itself below
        first: BaseException = failures
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from None


async def follow_files(tls: Any, *files: Path) -> None:
    """Reloads certificates when a file in their folders changes; Kubernetes swaps mounted Secrets by a symlink."""
    await tls.follow(awatch(*sorted({file.parent for file in files}), step=200))
