"""Our own processes under the demo: started for real, their log lines followed, ended with the demo."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from hami.core.errors import HamiError

START_LIMIT_S: Final = 60.0
STOP_LIMIT_S: Final = 5.0


_ENTRY: Final = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv.pop(1)):
    sys.exit("the demo has ended")
from hami.apps.cli import main
main()
"""
"""How a process of the demo starts: asked to end when the demo dies, also by kill -9. The process asks for itself,
because what runs between fork and exec upsets gRPC's threads; a demo that died before it could ask is seen by the
parent's number, the first argument."""


class HamiProcess:
    """One `hami …` process. Its log goes to a file; lines are JSON, since its stderr is no terminal."""

    def __init__(self, name: str, arguments: Sequence[str], log_file: Path) -> None:
        self.name = name
        self.command = [sys.executable, "-c", _ENTRY, str(os.getpid()), *arguments]
        self.shown_command = shlex.join([_typed(), *arguments])
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._lines: list[dict[str, Any]] = []
        self._news = asyncio.Condition()

    @property
    def pid(self) -> int:
        """Process id. The process must have been started."""
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """Exit status, None while it runs."""
        return self._process.returncode if self._process else None

    async def start(self) -> None:
        """Starts the process."""
        self._process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        self._reader = asyncio.ensure_future(self._follow(self._process))

    async def wait_for(self, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first log line for which `what` is true. Raises HamiError with the last words when it does not come."""
        deadline = time.monotonic() + START_LIMIT_S
        async with self._news:
            while True:
                found = next((line for line in self._lines if what(line)), None)
                if found is not None:
                    return found
                if self.ended is not None:
                    raise HamiError(f"{self.name} ended with {self.ended}: {self.last_words()}")
                try:
                    async with asyncio.timeout(deadline - time.monotonic()):
                        await self._news.wait()
                except TimeoutError as error:
                    text = f"{self.name} was not ready within {START_LIMIT_S:.0f} s: {self.last_words()}"
                    raise HamiError(text) from error

    async def stop(self) -> None:
        """Ends the process, by force if it does not listen."""
        if self._process is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            try:
                async with asyncio.timeout(STOP_LIMIT_S):
                    await self._process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        if self._reader is not None:
            await self._reader

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with self._log_file.open("ab", buffering=0) as file:
            async for raw in process.stderr:
                with contextlib.suppress(OSError):  # a full disk: nobody may wait for what is not kept
                    file.write(raw)
                await self._told(_parsed(raw))
        await process.wait()
        await self._told({"event": "ended"})

    async def _told(self, line: dict[str, Any]) -> None:
        async with self._news:
            self._lines.append(line)
            self._news.notify_all()

    def last_words(self) -> str:
        """The end of its log, for an error's text."""
        words = [line.get("raw") or json.dumps(line) for line in self._lines[-4:-1]]
        return " | ".join(words) or "it said nothing"


def _typed() -> str:
    """What a person types for `hami`: the environment of `make setup` is on nobody's PATH."""
    beside = Path(sys.executable).with_name("hami")
    found = shutil.which("hami")
    return "hami" if (found is not None and Path(found) == beside) or not beside.exists() else str(beside)


def _parsed(raw: bytes) -> dict[str, Any]:
    text = raw.decode(errors="replace").rstrip()
    try:
        line = json.loads(text)
    except ValueError:
        return {"raw": text}
    return line if isinstance(line, dict) else {"raw": text}
