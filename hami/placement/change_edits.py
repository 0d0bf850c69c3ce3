"""One edit of a scene, and the words in which it is told: what pairs and larger sets of changes are made of."""

from __future__ import annotations

from collections.abc import Sequence
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

_NO_AMOUNT: Final = Amount(0, "", 0, 0)


class Edit(msgspec.Struct, frozen=True):
    """One change that is tried. Which fields are set depends on the kind."""

    kind: ChangeKind
    amount: Amount = _NO_AMOUNT
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


class Teller:
    """Turns edits into changes, and tries them."""

    def __init__(self, world: World, stage: Stage, start: Scene) -> None:
        self._world = world
        self._stage = stage
        self.start = start

    def scene(self, edits: Sequence[Edit], values: Sequence[int]) -> Scene:
        """What the cluster and the pod are after these edits."""
        scene = self.start
        for edit, value in zip(edits, values, strict=True):
            scene = edit.on(scene, value)
        return scene

    def place(self, edits: Sequence[Edit], values: Sequence[int]) -> str:
        """The node that would take the pod then; empty if none would."""
        return self._stage.place(self.scene(edits, values))

    def place_on(self, node: str, edits: Sequence[Edit], values: Sequence[int]) -> bool:
        """Whether this node would take it."""
        return self._stage.takes(self.scene(edits, values), node)

    def raised(self, edits: Sequence[Edit], order: Sequence[int]) -> list[int]:
        """The largest amounts that fit, when they are raised from the least in this order."""
        values = least(edits)
        for position in order:
            low, high = values[position], edits[position].amount.amount - 1
            while low < high:
                middle = (low + high + 1) // 2
                fits = self.place(edits, _with(values, position, middle))
                low, high = (middle, high) if fits else (low, middle - 1)
            values = _with(values, position, low)
        return values

    def told(self, edits: Sequence[Edit], values: Sequence[int]) -> tuple[Change, ...]:
        """The changes in words."""
        scene = self.scene(edits, values)
        node = self._stage.place(scene)
        return tuple(self._change(edit, value, scene, node) for edit, value in zip(edits, values, strict=True))

    def _change(self, edit: Edit, value: int, scene: Scene, node: str) -> Change:
        if edit.kind is ChangeKind.ANNOTATION:
            return annotation_change(self.start.pod, edit.annotation, node)
        if edit.kind is ChangeKind.UNCORDON:
            return uncordon_change(edit.node, edit.card, node)
        if edit.kind is ChangeKind.WAIT and edit.claim is not None:
            return wait_change(edit.claim, node)
        if edit.kind is ChangeKind.QUOTA:
            return quota_change(self._world, self._stage, scene, node)
        return amount_change(edit.kind, self.start.pod, edit.amount, value, node)


def least(edits: Sequence[Edit]) -> list[int]:
    """The smallest value that each edit may try, in its own unit."""
    return [edit.amount.lowest for edit in edits]


def _with(values: Sequence[int], position: int, value: int) -> list[int]:
    return [*values[:position], value, *values[position + 1 :]]
