"""The list of fitting nodes in a FilteringSucceed event, from the columns as they were at the decision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hami.core import narrative
from hami.core.keys import EVENT_FILTERING_SUCCEED
from hami.placement.answers import EventText
from hami.placement.columns import BoolArray, Columns
from hami.placement.names import NodeNames

_LISTED = 10
"""Nodes named in the event, best first; upstream names them all (spec/scheduler 4.8)."""


@dataclass(frozen=True, slots=True)
class FittingNodes:
    """Candidates and scores at the time of a decision, over the places of `columns`."""

    columns: Columns
    mask: BoolArray
    scores: NDArray[np.float32]
    spread: bool

    @classmethod
    def of(cls, columns: Columns, mask: BoolArray, *, spread: bool) -> FittingNodes:
        return cls(columns, mask.copy(), columns.scores[: len(mask)].copy(), spread)

    def event(self, node: str, names: NodeNames) -> tuple[EventText, ...]:
        """The event for the choice of `node` among `names`."""
        size = len(self.mask)
        offered = np.flatnonzero(self.mask & self.columns.mask_of(names.list())[:size])
        scores = self.scores[offered]
        if len(offered) > _LISTED:
            best = np.partition(scores if self.spread else -scores, _LISTED)[_LISTED]
            near = (scores if self.spread else -scores) <= best
            shown, scores = offered[near], scores[near]
        else:
            shown = offered
        order = np.lexsort((self.columns.ranks[shown], scores if self.spread else -scores))[:_LISTED]
        listed = [(self.columns.name(int(shown[at])), float(scores[at])) for at in order]
        text = narrative.filtering_succeed(node, listed, names.count, len(offered))
        return ((False, EVENT_FILTERING_SUCCEED, text),)
