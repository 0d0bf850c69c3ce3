"""Two changes together, for a pod that no single one would make fit: less of two things, or one of each kind.

Every pair is tried with the evaluator before it is named, and neither half would do alone. Bounded: the smallest pods,
the first cards and a fixed number of tries, so that a pair may exist that is not found; `change_sets` finds a set then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

from hami.placement.change_edits import Edit, Teller, least
from hami.placement.changes import Change, ChangeKind
from hami.placement.claims import Claim
from hami.placement.what_if import Amount
from hami.placement.world import World

_MOST_CARDS: Final = 8
_MOST_PODS: Final = 12
_MOST_ANNOTATIONS: Final = 8
_MOST_TRIES: Final = 400
_MOST_PAIRS: Final = 3

Pair = tuple[Change, Change]


class PairSearch:
    """Looks for pairs for one pod."""

    def __init__(
        self,
        world: World,
        teller: Teller,
        amounts: Sequence[tuple[ChangeKind, Amount]],
        annotations: Sequence[str],
        in_the_way: Sequence[Claim],
    ) -> None:
        """`annotations`: keys that shape the request; `in_the_way`: pods whose end makes room, the smallest first."""
        self._world = world
        self._teller = teller
        self._amounts = amounts
        self._annotations = annotations
        self._in_the_way = in_the_way

    def all(self) -> tuple[Pair, ...]:
        """At most one pair for each two kinds; those first that take the smallest part of what is asked."""
        found: dict[tuple[ChangeKind, ChangeKind], tuple[float, Pair]] = {}
        tries = 0
        for edits in combinations(self._edits(), 2):
            kinds = (edits[0].kind, edits[1].kind)
            same = bool(edits[0].amount.resource) and _place(edits[0]) == _place(edits[1])
            if same or kinds in found:
                continue
            tries += 1
            if tries > _MOST_TRIES:
                break
            if self._teller.place(edits, least(edits)):
                found[kinds] = self._best(edits)
        ordered = sorted(found.values(), key=lambda each: each[0])
        return tuple(pair for _, pair in ordered[:_MOST_PAIRS])

    def _edits(self) -> Iterator[Edit]:
        for kind, amount in self._amounts:
            if amount.amount > amount.lowest:
                yield Edit(kind, amount)
        for key in self._annotations[:_MOST_ANNOTATIONS]:
            yield Edit(ChangeKind.ANNOTATION, annotation=key)
        for node, card in self._cordoned()[:_MOST_CARDS]:
            yield Edit(ChangeKind.UNCORDON, node=node, card=card)
        for claim in self._in_the_way[:_MOST_PODS]:
            yield Edit(ChangeKind.WAIT, claim=claim)
        if self._world.quotas.limited(self._teller.start.pod.metadata.namespace):
            yield Edit(ChangeKind.QUOTA)

    def _cordoned(self) -> list[tuple[str, str]]:
        cards: list[tuple[str, str]] = []
        for name in sorted(self._world.inventory.names()):
            view = self._world.view(name)
            if view is not None and not view.problem and view.state.cordoned:
                cards += [(name, each.id) for each in view.state.devices if each.id in view.state.cordoned]
        return cards

    def _best(self, edits: tuple[Edit, Edit]) -> tuple[float, Pair]:
        """With the largest amounts that fit: either may be raised first, whichever asks the pod to give up less."""
        options = [self._teller.raised(edits, order) for order in ((0, 1), (1, 0))]
        parts = [sum(edit.part(value) for edit, value in zip(edits, values, strict=True)) for values in options]
        part = min(parts)
        left, right = self._teller.told(edits, options[parts.index(part)])
        return part, (left, right)


def _place(edit: Edit) -> tuple[int, str]:
    return edit.amount.index, edit.amount.resource
