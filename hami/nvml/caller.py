"""Blocking driver calls with a time limit: a thread of its own does them, and is left behind if one never returns."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from hami.core.errors import NvmlError

_MAX_ABANDONED: Final = 8

R = TypeVar("R")


class Caller:
    """Runs functions one after another on a daemon thread.

    A call over its limit raises NvmlError; its thread is abandoned (a driver call cannot be interrupted) and the next
    call gets a new one. After 8 abandoned threads every call fails at once: the driver hangs for good.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: queue.SimpleQueue[Callable[[], None] | None] | None = None
        self._abandoned = 0
        self._turn = asyncio.Lock()

    async def call(self, what: str, function: Callable[[], R], timeout_s: float) -> R:
        """The function's result; exceptions of the function pass through. Raises NvmlError after `timeout_s`."""
        async with self._turn:
            work = self._thread(what)
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[R] = loop.create_future()
            work.put(lambda: _run(function, answer, loop))
            try:
                async with asyncio.timeout(timeout_s):
                    return await answer
            except TimeoutError as error:
                self._abandon()
                raise NvmlError(f"{what}: no answer of the driver within {timeout_s:g} s") from error
            except asyncio.CancelledError:
                self._abandon()
                raise

    def close(self) -> None:
        """Lets the thread end after what it is doing."""
        if self._work is not None:
            self._work.put(None)
            self._work = None

    def _thread(self, what: str) -> queue.SimpleQueue[Callable[[], None] | None]:
        if self._work is None:
            if self._abandoned >= _MAX_ABANDONED:
                raise NvmlError(f"{what}: the driver hangs ({self._abandoned} calls never returned)")
            self._work = queue.SimpleQueue()
            threading.Thread(target=_serve, args=(self._work,), name=self._name, daemon=True).start()
        return self._work

    def _abandon(self) -> None:
        if self._work is not None:
            self._abandoned += 1
            # If the call does return one day, its thread finds this and ends.
            self._work.put(self._returned)
            self._work.put(None)
            self._work = None

    def _returned(self) -> None:
        self._abandoned -= 1


def _serve(work: queue.SimpleQueue[Callable[[], None] | None]) -> None:
    while (job := work.get()) is not None:
        job()


def _run(function: Callable[[], R], answer: asyncio.Future[R], loop: asyncio.AbstractEventLoop) -> None:
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
        _post(loop, answer, partial(answer.set_exception, error))
    else:
        _post(loop, answer, partial(answer.set_result, result))


def _post(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Any], settle: Callable[[], None]) -> None:
    def settle_if_awaited() -> None:
        if not answer.done():
            settle()

    try:
        loop.call_soon_threadsafe(settle_if_awaited)
    except RuntimeError:
        # The loop is closed: nobody waits any more.
        return
