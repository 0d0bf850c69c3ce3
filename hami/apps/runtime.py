"""What every process does at its edge: real clocks, signals, tasks that live and die together."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from watchfiles import awatch

log = structlog.get_logger("hami.apps")

_POLL_S: Final = 2.0


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


async def folder_changes(*folders: Path, poll_s: float = _POLL_S) -> AsyncIterator[object]:
    """Yields after each change in the folders.

    A busy host may have no inotify instance left ("too many open files"): then the folders are looked at every
    `poll_s`, and the process lives. Yields once at that moment, for a change may have been missed.
    """
    try:
        async for changes in awatch(*folders, step=200, recursive=False):
            yield changes
        return
    except (OSError, RuntimeError) as error:
        log.warning("files cannot be watched and are looked at now and then", every_s=poll_s, why=str(error))
    seen: object = None
    while True:
        now = _state_of(folders)
        if now != seen:
            seen = now
            yield now
        await asyncio.sleep(poll_s)


def _state_of(folders: Sequence[Path]) -> list[tuple[str, int, int, int]]:
    """What tells that a file was written or swapped; links are followed."""
    found = []
    for folder in folders:
        # Swapped away while it is looked at: the next look sees what came instead.
        with contextlib.suppress(OSError):
            for path in sorted(folder.iterdir()):
                facts = path.stat()
                found.append((str(path), facts.st_ino, facts.st_mtime_ns, facts.st_size))
    return found


async def follow_files(tls: Any, *files: Path) -> None:
    """Reloads certificates when a file in their folders changes; Kubernetes swaps mounted Secrets by a symlink."""
    await tls.follow(folder_changes(*sorted({file.parent for file in files})))
