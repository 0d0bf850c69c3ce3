"""Any number of changes together, for a pod that no two would make fit.

On one node after the other everything is changed that can be: least amounts, no annotations, cards back in use, pods
gone, quota raised. Where that would do, changes are taken back one by one as long as the pod still fits; what stays
does together, and none of it can be left out. So a set is found wherever changes help at all, whatever its size; a
smaller one with other changes may exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from hami.placement.change_edits import Edit, Teller, least
from hami.placement.changes import Change, ChangeKind, held
from hami.placement.claims import Claim
from hami.placement.what_if import Amount
from hami.placement.world import World

_MOST_NODES: Final = 4
"""Nodes on which sets are worked out; the others are only asked whether everything would do."""

_Ranked = tuple[int, float, tuple[Edit, ...], list[int]]


class SetSearch:
    """Looks for sets for one pod."""

    def __init__(
        self, world: World, teller: Teller, amounts: Sequence[tuple[ChangeKind, Amount]], annotations: Sequence[str]
    ) -> None:
        """`annotations`: keys that shape the request."""
        self._world = world
        self._teller = teller
        of_pod = [Edit(kind, amount) for kind, amount in amounts if amount.amount > amount.lowest]
        of_pod += [Edit(ChangeKind.ANNOTATION, annotation=key) for key in annotations]
        if world.quotas.limited(teller.start.pod.metadata.namespace):
            of_pod.append(Edit(ChangeKind.QUOTA))
        self._of_pod = of_pod

    def smallest(self) -> tuple[Change, ...]:
        """The smallest of the sets found: fewest changes, then the smallest part of what is asked."""
        best: _Ranked | None = None
        for edits in islice(self._sufficient(), _MOST_NODES):
            # What is taken back first is least likely to stay: the pod's wishes, or other pods.
            for order in (edits, tuple(reversed(edits))):
                found = self._ranked(self._minimal(order))
                if best is None or found[:2] < best[:2]:
                    best = found
        return self._teller.told(best[2], best[3]) if best is not None else ()

    def _sufficient(self) -> Iterator[tuple[Edit, ...]]:
        for name in sorted(self._world.inventory.names()):
            edits = (*self._of_pod, *self._on_node(name))
            if self._teller.place_on(name, edits, least(edits)):
                yield edits

    def _on_node(self, name: str) -> Iterator[Edit]:
        """Its cards and its pods, the smallest first."""
        view = self._world.view(name)
        if view is None or view.problem:
            return
        for device in view.state.devices:
            if device.id in view.state.cordoned:
                yield Edit(ChangeKind.UNCORDON, node=name, card=device.id)
        found = map(self._world.ledger.get, self._world.ledger.uids_on(name))
        for claim in sorted((claim for claim in found if claim and claim.charges), key=_size):
            yield Edit(ChangeKind.WAIT, claim=claim)

    def _minimal(self, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
        """Without what can be left out."""
        before: tuple[Edit, ...] = ()
        while edits != before:
            before = edits
            for edit in before:
                rest = tuple(each for each in edits if each is not edit)
                if self._teller.place(rest, least(rest)):
                    edits = rest
        return edits

    def _ranked(self, edits: tuple[Edit, ...]) -> _Ranked:
        values = self._teller.raised(edits, range(len(edits)))
        part = sum(edit.part(value) for edit, value in zip(edits, values, strict=True))
        return len(edits), part, edits, values


def _size(claim: Claim) -> tuple[tuple[int, int], str]:
    return held(claim), claim.key
