"""Client-side limit of requests: a token bucket per lane, so that reads and events never delay a bind."""

from __future__ import annotations

import asyncio
import enum
from typing import Final


class Lane(enum.Enum):
    """Which bucket a request draws from (design 5: own lanes for binds and events)."""

    DEFAULT = "default"
    BIND = "bind"
    BINDING = "binding"
    """The write that ends a bind. What has begun must not wait behind what begins: its node waits with it."""
    EVENT = "event"
    PAGES = "pages"
    """Further pages of a list. They come one after another, so a list limits itself and counts as one request: 50,000
    pods at 50 requests a second would take five seconds for nothing."""


WIDE_LANES: Final = frozenset({Lane.BIND, Lane.BINDING})
WIDE_FACTOR: Final = 4
"""At the plain limit of 50 a token and a Binding for each pod would hold the cluster to 25 pods a second, less than
kube-scheduler does without an extender. Events may come later: in a burst they only slow the binds down."""


def bucket_for(lane: Lane, qps: float, burst: int) -> TokenBucket:
    """The limit of one lane, where the client's is `qps` and `burst`."""
    if lane is Lane.PAGES:
        return TokenBucket(0, burst)
    factor = WIDE_FACTOR if lane in WIDE_LANES else 1
    return TokenBucket(qps * factor, burst * factor)


class TokenBucket:
    """Lets `burst` requests through at once and `qps` per second after that, in order of arrival.

    `qps` <= 0 means no limit (client-go's meaning of a negative QPS).
    """

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._refilled_at_s: float | None = None

    async def acquire(self) -> None:
        """Takes one token; waits until there is one. A cancelled waiter gives its token back."""
        wait_s = self._reserve(asyncio.get_running_loop().time())
        if wait_s <= 0:
            return
        try:
            await asyncio.sleep(wait_s)
        except asyncio.CancelledError:
            self._tokens += 1
            raise

    def _reserve(self, now_s: float) -> float:
        if self._qps <= 0:
            return 0.0
        if self._refilled_at_s is not None:
            self._tokens = min(self._burst, self._tokens + (now_s - self._refilled_at_s) * self._qps)
        self._refilled_at_s = now_s
        self._tokens -= 1
        return max(0.0, -self._tokens / self._qps)
