"""What the pods of each namespace hold together, by vendor: kept in step with the ledger, claim by claim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from hami.core.model import NO_USE, Use
from hami.placement.claims import Claim

_NOTHING: Final[Mapping[str, Use]] = {}


class NamespaceUse:
    """Sums by namespace and vendor word; bound pods and reservations count alike."""

    def __init__(self) -> None:
        self._uses: dict[str, dict[str, Use]] = {}

    def of(self, namespace: str) -> Mapping[str, Use]:
        """Vendor word -> use; vendors of which nothing is held are left out."""
        return self._uses.get(namespace, _NOTHING)

    def without(self, namespace: str, *claims: Claim | None) -> Mapping[str, Use]:
        """The same as if these claims did not exist."""
        uses = self.of(namespace)
        for claim in claims:
            if claim is not None and claim.namespace == namespace:
                own = by_word(claim)
                uses = {word: use.minus(own.get(word, NO_USE)) for word, use in uses.items()}
        return uses

    def add(self, claim: Claim) -> None:
        if claim.charges:
            uses = self._uses.setdefault(claim.namespace, {})
            for word, use in by_word(claim).items():
                uses[word] = uses.get(word, NO_USE).plus(use)

    def subtract(self, claim: Claim) -> None:
        if not claim.charges:
            return
        uses = self._uses[claim.namespace]
        for word, use in by_word(claim).items():
            left = uses[word].minus(use)
            if left == NO_USE:
                del uses[word]
            else:
                uses[word] = left
        if not uses:
            del self._uses[claim.namespace]


def by_word(claim: Claim) -> dict[str, Use]:
    """What a claim holds of each vendor."""
    return summed(claim.words, claim.charges)


def summed(words: Iterable[str], charges: Iterable[tuple[str, Use]]) -> dict[str, Use]:
    """Sums of `charges` (card id, use) by the vendor word of each."""
    total: dict[str, Use] = {}
    for word, (_, use) in zip(words, charges, strict=True):
        total[word] = total[word].plus(use) if word in total else use
    return total
