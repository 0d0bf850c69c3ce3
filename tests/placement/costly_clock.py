"""A clock on which work takes time."""

from __future__ import annotations

from hami.placement.slicer import SLICE_S
from tests.placement.fakes import FakeClock


class CostlyClock(FakeClock):
    """Every look at the time costs a tenth of a slice."""

    def monotonic_s(self) -> float:
        self.now_s += SLICE_S / 10
        return self.now_s
