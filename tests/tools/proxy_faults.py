"""Writes that a fault proxy saw, and faults that it is told to commit."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Callable
from typing import Literal

When = Literal["before", "after"]
READS = ("GET", "HEAD", "OPTIONS")


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """One write that arrived: its number since the last reset, and the API server's status if it got that far."""

    number: int
    method: str
    path: str
    status: int | None = None


@dataclasses.dataclass(slots=True)
class Fault:
    """What to do to which request.

    `number` chooses the nth write since the last reset, `method`, `path` and `body` (regular expressions) choose by
    kind; all that are given must match. `when` places the fault before or after the API server sees the request. With a
    `callback` (run on a worker thread, it may block) or `lose`, the answer is lost and the connection broken; with
    `status` the proxy answers by itself. With `hold` the request waits until that event is set, after `callback` ran,
    and goes on as if nothing had happened. `times` is how often the fault strikes before it is spent; it strikes each
    `every`-th request that it could.
    """

    when: When = "before"
    number: int | None = None
    method: str = ".*"
    path: str = ".*"
    body: str = ""
    callback: Callable[[], object] | None = None
    lose: bool = False
    status: int | None = None
    delay_s: float = 0.0
    times: int = 1
    hold: threading.Event | None = None
    every: int = 1
    met: int = 0
    """How many requests it could have struck."""
    struck: int = 0

    def strikes(self, when: When, method: str, path: str, number: int | None, body: str = "") -> bool:
        """True when the fault applies to this request at this moment."""
        return (
            self.times > 0
            and self.when == when
            and (self.number is None or self.number == number)
            and re.fullmatch(self.method, method) is not None
            and re.search(self.path, path) is not None
            and re.search(self.body, body) is not None
        )

    @property
    def breaks_connection(self) -> bool:
        """True when the component gets no answer."""
        return self.lose or (self.callback is not None and self.hold is None)
