"""Two changes together, for a pod that no single one would make fit: less of two things, or one of each kind.

Every pair is tried with the evaluator before it is named, and neither half would do alone. Bounded: the smallest pods,
the first cards and a fixed number of tries, so that a pair may exist that is not found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Final

import msgspec

from hami.placement.changes import (
    Change,
    ChangeKind,
    amount_change,
    annotation_change,
    quota_change,
    uncordon_change,
    wait_change,
)
from hami.placement.claims import Claim
from hami.placement.what_if import Amount, Scene, Stage
from hami.placement.world import World

_MOST_CARDS: Final = 8
_MOST_PODS: Final = 12
_MOST_ANNOTATIONS: Final = 8
_MOST_TRIES: Final = 400
_MOST_PAIRS: Final = 3

Pair = tuple[Change, Change]


class _Edit(msgspec.Struct, frozen=True):
    """One half of a pair. Which fields are set depends on the kind."""

    kind: ChangeKind
    amount: Amount = Amount(0, "", 0, 0)
    annotation: str = ""
    node: str = ""
    card: str = ""
    claim: Claim | None = None

    def on(self, scene: Scene, value: int) -> Scene:
        """The scene with this edit; `value` counts for amounts only."""
        if self.kind is ChangeKind.ANNOTATION:
            return scene.without(self.annotation)
        if self.kind is ChangeKind.UNCORDON:
            return msgspec.structs.replace(scene, uncordoned=scene.uncordoned | {(self.node, self.card)})
        if self.kind is ChangeKind.WAIT and self.claim is not None:
            return msgspec.structs.replace(scene, gone=scene.gone | {self.claim.uid})
        if self.kind is ChangeKind.QUOTA:
            return msgspec.structs.replace(scene, quota_raised=True)
        return scene.lowered(self.amount, value)

    def part(self, value: int) -> float:
        """How much the pod gives up; all of it where that is no number."""
        return (self.amount.amount - value) / self.amount.amount if self.amount.amount else 1.0


Edits = tuple[_Edit, _Edit]
Values = tuple[int, int]


class PairSearch:
    """Looks for pairs for one pod."""

    def __init__(
        self,
        world: World,
        stage: Stage,
        start: Scene,
        amounts: Sequence[tuple[ChangeKind, Amount]],
        annotations: Sequence[str],
        in_the_way: Sequence[Claim],
    ) -> None:
        """`annotations`: keys that shape the request; `in_the_way`: pods whose end makes room, the smallest first."""
        self._world = world
        self._stage = stage
        self._start = start
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
            if self._stage.place(self._scene(edits, _least(edits))):
                found[kinds] = self._best(edits)
        ordered = sorted(found.values(), key=lambda each: each[0])
        return tuple(pair for _, pair in ordered[:_MOST_PAIRS])

    def _edits(self) -> Iterator[_Edit]:
        for kind, amount in self._amounts:
            if amount.amount > amount.lowest:
                yield _Edit(kind, amount)
        for key in self._annotations[:_MOST_ANNOTATIONS]:
            yield _Edit(ChangeKind.ANNOTATION, annotation=key)
        for node, card in self._cordoned()[:_MOST_CARDS]:
            yield _Edit(ChangeKind.UNCORDON, node=node, card=card)
        for claim in self._in_the_way[:_MOST_PODS]:
            yield _Edit(ChangeKind.WAIT, claim=claim)
        if self._world.quotas.limited(self._start.pod.metadata.namespace):
            yield _Edit(ChangeKind.QUOTA)

    def _cordoned(self) -> list[tuple[str, str]]:
        cards: list[tuple[str, str]] = []
        for name in sorted(self._world.inventory.names()):
            view = self._world.view(name)
            if view is not None and not view.problem and view.state.cordoned:
                cards += [(name, each.id) for each in view.state.devices if each.id in view.state.cordoned]
        return cards

    def _best(self, edits: Edits) -> tuple[float, Pair]:
        """With the largest amounts that fit: either may be raised first, whichever asks the pod to give up less."""
        options = [self._raised(edits, order) for order in ((0, 1), (1, 0))]
        parts = [sum(edit.part(value) for edit, value in zip(edits, values, strict=True)) for values in options]
        part = min(parts)
        values = options[parts.index(part)]
        scene = self._scene(edits, values)
        node = self._stage.place(scene)
        left, right = (self._told(edit, value, scene, node) for edit, value in zip(edits, values, strict=True))
        return part, (left, right)

    def _raised(self, edits: Edits, order: tuple[int, int]) -> Values:
        values = _least(edits)
        for position in order:
            low, high = values[position], edits[position].amount.amount - 1
            while low < high:
                middle = (low + high + 1) // 2
                fits = self._stage.place(self._scene(edits, _with(values, position, middle)))
                low, high = (middle, high) if fits else (low, middle - 1)
            values = _with(values, position, low)
        return values

    def _scene(self, edits: Edits, values: Values) -> Scene:
        return edits[1].on(edits[0].on(self._start, values[0]), values[1])

    def _told(self, edit: _Edit, value: int, scene: Scene, node: str) -> Change:
        if edit.kind is ChangeKind.ANNOTATION:
            return annotation_change(self._start.pod, edit.annotation, node)
        if edit.kind is ChangeKind.UNCORDON:
            return uncordon_change(edit.node, edit.card, node)
        if edit.kind is ChangeKind.WAIT and edit.claim is not None:
            return wait_change(edit.claim, node)
        if edit.kind is ChangeKind.QUOTA:
            return quota_change(self._world, self._stage, scene, node)
        return amount_change(edit.kind, self._start.pod, edit.amount, value, node)


def _least(edits: Edits) -> Values:
    return edits[0].amount.lowest, edits[1].amount.lowest


def _with(values: Values, position: int, value: int) -> Values:
    return (value, values[1]) if position == 0 else (values[0], value)


def _place(edit: _Edit) -> tuple[int, str]:
    return edit.amount.index, edit.amount.resource
