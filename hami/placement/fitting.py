"""The list of fitting nodes in a FilteringSucceed event, from the columns as they were at the decision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hami.core import narrative
from hami.core.keys import EVENT_FILTERING_SUCCEED
from hami.placement.answers import EventText
from hami.placement.columns import Columns
from hami.placement.names import NodeNames
from hami.placement.vendor_columns import BoolArray

_LISTED = 10
"""Nodes named in the event, best first; upstream names them all (spec/scheduler 4.8)."""


class Offered:
    """The nodes that a call offers, as a mask over the places of `columns`, worked out once as long as places stay."""

    def __init__(self, columns: Columns, names: NodeNames) -> None:
        self._columns = columns
        self.names = names
        self._version = -1
        self._mask: BoolArray | None = None

    @property
    def mask(self) -> BoolArray:
        """Raises msgspec.DecodeError if the names are no list of texts."""
        if self._mask is None or self._version != self._columns.version:
            self._mask = self._columns.mask_of(self.names.list())
            self._version = self._columns.version
        return self._mask


@dataclass(frozen=True, slots=True)
class FittingNodes:
    """Candidates and scores at the time of a decision, over the places of `columns`."""

    columns: Columns
    offer: Offered
    mask: BoolArray
    scores: NDArray[np.float32]
    spread: bool

    @classmethod
    def of(cls, columns: Columns, offer: Offered, mask: BoolArray, *, spread: bool) -> FittingNodes:
        return cls(columns, offer, mask.copy(), columns.scores[: len(mask)].copy(), spread)

    def event(self, node: str) -> tuple[EventText, ...]:
        """The event for the choice of `node` among the nodes offered."""
        offered = np.flatnonzero(self.mask & self.offer.mask[: len(self.mask)])
        # Smaller is better from here on.
        keys = self.scores[offered] if self.spread else -self.scores[offered]
        shown = offered
        if len(offered) > _LISTED:
            near = keys <= np.partition(keys, _LISTED)[_LISTED]
            shown, keys = offered[near], keys[near]
        order = np.lexsort((self.columns.ranks[shown], keys))[:_LISTED]
        places = shown[order].tolist()
        listed = list(zip(map(self.columns.name, places), self.scores[places].tolist(), strict=True))
        text = narrative.filtering_succeed(node, listed, self.offer.names.count, len(offered))
        return ((False, EVENT_FILTERING_SUCCEED, text),)
