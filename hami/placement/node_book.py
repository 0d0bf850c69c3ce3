"""Sums of what is held on one node."""

from __future__ import annotations

from hami.core.model import NO_USE, MigPlacement, Use
from hami.placement.claims import Claim


class NodeBook:
    """Sums by card id, and the pods behind them."""

    __slots__ = ("problems", "slices", "uids", "uses")

    def __init__(self) -> None:
        self.uses: dict[str, Use] = {}
        self.uids: set[str] = set()
        self.problems: dict[str, str] = {}
        self.slices: dict[str, tuple[tuple[str, MigPlacement], ...]] = {}
        """Uid -> MIG slices; pods without any are left out."""

    def add(self, claim: Claim) -> None:
        """The claim holds what it says."""
        self.uids.add(claim.uid)
        if claim.problem:
            self.problems[claim.uid] = claim.problem
        if claim.slices:
            self.slices[claim.uid] = claim.slices
        for device, use in claim.charges:
            self.uses[device] = self.uses.get(device, NO_USE).plus(use)

    def subtract(self, claim: Claim) -> None:
        """The claim, which was added, holds nothing any more."""
        self.uids.discard(claim.uid)
        self.problems.pop(claim.uid, None)
        self.slices.pop(claim.uid, None)
        for device, use in claim.charges:
            left = self.uses[device].minus(use)
            if left == NO_USE:
                del self.uses[device]
            else:
                self.uses[device] = left
