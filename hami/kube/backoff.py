"""Delays between attempts: doubled each time, capped, with jitter, back to the start after a success."""

from __future__ import annotations

import random
from typing import Final

_FIRST_S: Final = 0.5
_CAP_S: Final = 30.0


class Backoff:
    """Delays of 0.5, 1, 2 ... 30 s; each is shortened by up to half at random, so that clients spread out."""

    def __init__(self, first_s: float = _FIRST_S, cap_s: float = _CAP_S) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._failures = 0

    def reset(self) -> None:
        self._failures = 0

    def next_s(self) -> float:
        """The delay before the next attempt."""
        delay_s = min(self._cap_s, self._first_s * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return delay_s * (0.5 + random.random() / 2)  # noqa: S311
