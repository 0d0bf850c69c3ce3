"""Link quality between cards as one number (spec/node 3.3): the PCI relation, and 100 for each NVLink."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hami.nvml.probe import PairFacts

_LEVEL_SCORES: Final = {
    "system": 10,
    "node": 20,
    "hostbridge": 30,
    "multiple": 40,
    "single": 50,
    "internal": 60,
}
_LINK_SCORE: Final = 100
_MAX_LINKS: Final = 18


def pair_scores(uuids: Sequence[str], pairs: Iterable[PairFacts]) -> dict[str, dict[str, int]]:
    """Score of each registered card to each other one, in both directions; pairs of other cards are left out."""
    scores: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids}
    for pair in pairs:
        if pair.first in scores and pair.second in scores:
            scores[pair.first][pair.second] = scores[pair.second][pair.first] = score(pair)
    return scores


def score(pair: PairFacts) -> int:
    """0 where the two directions disagree about their links: such a pair is broken."""
    if pair.links_forward != pair.links_back:
        return 0
    links = pair.links_forward or pair.through_switch
    return _LEVEL_SCORES.get(pair.level, 0) + _LINK_SCORE * min(links, _MAX_LINKS)


def asymmetric(pairs: Iterable[PairFacts]) -> list[tuple[str, str]]:
    """Pairs whose directions disagree, for a warning event."""
    return [(pair.first, pair.second) for pair in pairs if pair.links_forward != pair.links_back]
