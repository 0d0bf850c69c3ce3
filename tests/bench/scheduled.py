"""The real `hami scheduler` in a process of its own: `python -m tests.bench.scheduled CORE LOOP FLAG...`.

LOOP `uvloop` is what production runs. LOOP `slices` is Python's own loop, on which the CPU time of every callback is
taken: the same work, cut the same way. Prints one JSON line when synced, and one with what happened since for each line
on its standard input; ends when that closes.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from hami.apps.device_config_reload import registry_of
from hami.apps.scheduler import Scheduler
from hami.config import device_config
from hami.config import scheduler as scheduler_config
from tests.bench import application

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
LONG_MS = 5.0


class Slices:
    """CPU milliseconds of the longest callbacks since the last look."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self.long = 0
        """Callbacks above the limit of design 4, promise 7."""

    def watch(self) -> None:
        """Takes the time of every callback of Python's own loop from now on."""
        run = asyncio.Handle._run

        def timed(self_: asyncio.Handle) -> None:
            start_ns = time.thread_time_ns()
            run(self_)
            taken_ms = (time.thread_time_ns() - start_ns) / 1e6
            self.longest_ms = max(self.longest_ms, taken_ms)
            self.long += taken_ms > LONG_MS

        setattr(asyncio.Handle, "_run", timed)  # noqa: B010 - there is no public place for it

    def take(self) -> dict[str, float]:
        taken = {"longest_slice_ms": self.longest_ms, "long_slices": self.long}
        self.longest_ms, self.long = 0.0, 0
        return taken


def rss_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KIB / 1024


async def _run(flags: list[str], slices: Slices) -> None:
    settings, _ = scheduler_config.load(flags, {})
    config = device_config.read(settings.device_config_file)
    scheduler = Scheduler(settings, registry_of(config), config)
    task = asyncio.ensure_future(scheduler.run())
    start_s = start_cpu_s = 0.0
    while scheduler.missing():
        await asyncio.wait({task}, timeout=0.002)
        if scheduler.listeners and not start_s:
            # Until here it was the start of a process that nobody waits for yet; now it lists.
            start_s, start_cpu_s = time.perf_counter(), time.process_time()
            slices.take()
        if task.done():
            task.result()
    facts: dict[str, Any] = {
        "synced_s": time.perf_counter() - start_s,
        "synced_cpu_s": time.process_time() - start_cpu_s,
    }
    facts |= {"urls": [listener.url for listener in scheduler.listeners], "rss_mib": rss_mib(), **slices.take()}
    print(json.dumps(facts), flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps({"rss_mib": rss_mib(), "cpu_s": time.process_time(), **slices.take()}), flush=True)
    task.cancel()
    await asyncio.wait({task})


def main() -> None:
    core, loop, *flags = sys.argv[1:]
    if int(core) >= 0:
        os.sched_setaffinity(0, {int(core)})
    application.quiet_logs()
    slices = Slices()
    if loop == "slices":
        slices.watch()
        asyncio.run(_run(flags, slices))
    else:
        uvloop.run(_run(flags, slices))


if __name__ == "__main__":
    main()
