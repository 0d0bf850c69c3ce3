"""Fit of one request on one set of cards, check by check in upstream's order (4.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations

from tests.reference.mig import choose
from tests.reference.model import Card, Grant, Node, Object, Profile, Request
from tests.reference.objects import notes_of, words
from tests.reference.requests import UNSET_PERCENTAGE

QuotaTest = Callable[[list[Grant]], bool]
"""Whether the quota still holds with these cards given to the container at hand."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a pod's annotations say about the choice of cards."""

    use_types: list[str]
    deny_types: list[str]
    use_uuids: list[str]
    deny_uuids: list[str]
    modes: str
    policies: list[str]
    numa_bind: bool

    @property
    def mutex(self) -> bool:
        return "mutex" in self.policies

    @property
    def topology_aware(self) -> bool:
        return "topology-aware" in self.policies


def rules_of(pod: Object, policies: list[str], numa_bind: bool) -> Rules:
    notes = notes_of(pod)
    keys = ("use-gputype", "nouse-gputype", "use-gpuuuid", "nouse-gpuuuid")
    use_types, deny_types, use_uuids, deny_uuids = (words(notes.get(f"nvidia.com/{key}", "")) for key in keys)
    return Rules(
        [word.lower() for word in use_types],
        [word.lower() for word in deny_types],
        use_uuids,
        deny_uuids,
        notes.get("nvidia.com/vgpu-mode", ""),
        policies,
        numa_bind,
    )


def type_fits(card: Card, rules: Rules) -> bool:
    low = card.type.lower()
    allowed = not rules.use_types or any(word in low for word in rules.use_types)
    denied = any(word in low for word in rules.deny_types)
    return allowed and not denied and mode_fits(card.mode, rules)


def mode_fits(mode: str, rules: Rules) -> bool:
    return not rules.modes or mode in rules.modes


def uuid_fits(card: Card, rules: Rules) -> bool:
    return (not rules.use_uuids or card.uuid in rules.use_uuids) and card.uuid not in rules.deny_uuids


@dataclass(slots=True)
class Walk:
    """One walk over the candidate cards.

    `cards` come in the order in which they are tried; `quota` judges the cards of this container so far.
    """

    cards: list[Card]
    request: Request
    rules: Rules
    quota: QuotaTest
    reasons: dict[str, int] = field(default_factory=dict)
    taken: list[Grant] = field(default_factory=list)
    groups: list[list[Grant]] = field(default_factory=list)
    numa: int | None = None

    def run(self, node: Node) -> list[Grant] | None:
        """The cards given, or None with `reasons` filled."""
        for card in self.cards:
            if self._visit(card):
                return self.taken
        self.groups.append(self.taken)
        if self.rules.topology_aware:
            sets = [
                best_connected(group, self.request.nums, node.pair_scores)
                for group in self.groups
                if len(group) >= self.request.nums
            ]
            if sets:
                return max(sets, key=lambda chosen: connection(chosen, node.pair_scores))
        if self.taken:
            self.reasons["AllocatedCardsInsufficientRequest"] = len(self.taken)
        return None

    def _visit(self, card: Card) -> bool:
        """Try one card, a MIG card again until it fails. True when all cards asked for are taken."""
        trial = replace(card, taken_slices=list(card.taken_slices))
        for _ in range(self.request.nums if card.is_mig else 1):
            grant = self._try(trial)
            if grant is None:
                return False
            self.taken.append(grant)
            if not self.rules.topology_aware and len(self.taken) == self.request.nums:
                return True
            charge(trial, grant)
        return False

    def _try(self, card: Card) -> Grant | None:
        reason = self._checks_1_to_3(card)
        if reason is None:
            self._check_4(card)
            reason = self._checks_5_to_7(card) or self._checks_8_to_12(card)
        profile = None
        if reason is None and card.is_mig:
            profile = choose(card, self._mem(card), self.request.mem == 0)
            reason = "CardMigTopologyInfeasible" if profile is None else None
        if reason is not None:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            return None
        return self._grant(card, profile[0] if profile else None)

    def _checks_1_to_3(self, card: Card) -> str | None:
        if not card.healthy:
            return "CardNotHealth"
        if card.cordoned:
            return "CardCordoned"
        return None if type_fits(card, self.rules) else "CardTypeMismatch"

    def _check_4(self, card: Card) -> None:
        """numa-bind: a card of another NUMA node starts a new group; what was taken before is given back."""
        one_card_of_all = self.rules.topology_aware and self.request.nums == 1
        if not self.rules.numa_bind or one_card_of_all or self.numa == card.numa:
            return
        if self.taken:
            self.reasons["NumaNotFit"] = self.reasons.get("NumaNotFit", 0) + len(self.taken)
        self.groups.append(self.taken)
        self.numa, self.taken = card.numa, []

    def _checks_5_to_7(self, card: Card) -> str | None:
        if not uuid_fits(card, self.rules):
            return "CardUuidMismatch"
        if card.count <= card.used:
            return "CardTimeSlicingExhausted"
        return "ExclusiveDeviceAllocateConflict" if self.rules.mutex and card.used > 0 else None

    def _checks_8_to_12(self, card: Card) -> str | None:
        mem, cores = self._mem(card), self._cores()
        chosen = choose(card, mem, self.request.mem == 0) if card.is_mig else None
        if not self.quota([*self.taken, self._grant(card, chosen[0] if chosen else None)]):
            return "ResourceQuotaNotFit"
        if card.total_mem - card.used_mem < mem:
            return "CardInsufficientMemory"
        if card.total_cores - card.used_cores < cores:
            return "CardInsufficientCore"
        if card.total_cores == 100 and cores == 100 and card.used > 0:
            return "ExclusiveDeviceAllocateConflict"
        if card.total_cores != 0 and card.used_cores == card.total_cores and cores == 0:
            return "CardComputeUnitsExhausted"
        return None

    def _cores(self) -> int:
        return min(self.request.cores, 100)

    def _mem(self, card: Card) -> int:
        if self.request.mem == 0 and self.request.percentage != UNSET_PERCENTAGE:
            return card.total_mem * self.request.percentage // 100
        return self.request.mem

    def _grant(self, card: Card, profile: Profile | None) -> Grant:
        if profile is None:
            return Grant(card.uuid, self._mem(card), self._cores())
        chosen = choose(card, self._mem(card), self.request.mem == 0)
        return Grant(card.uuid, profile.memory_mib, profile.cores, chosen[1] if chosen else None)


def charge(card: Card, grant: Grant) -> None:
    """Add a grant to the card's usage."""
    card.charge(grant.mem, grant.cores)
    if grant.mig is not None:
        card.taken_slices.append((grant.mig.start, grant.mig.size))


def best_connected(group: list[Grant], nums: int, pairs: dict[str, dict[str, int]]) -> list[Grant]:
    """topology-aware: one card is the worst connected of the candidates, several are the best connected set."""
    if len(group) == nums:
        return group
    if nums == 1:
        return [min(group, key=lambda one: sum(pair_score(one, other, pairs) for other in group))]
    return list(max(combinations(group, nums), key=lambda chosen: connection(chosen, pairs)))


def connection(grants: Iterable[Grant], pairs: dict[str, dict[str, int]]) -> int:
    """Sum of the pair scores, each pair counted one way."""
    return sum(pair_score(a, b, pairs) for a, b in combinations(grants, 2))


def pair_score(a: Grant, b: Grant, pairs: dict[str, dict[str, int]]) -> int:
    return int(pairs.get(a.uuid, {}).get(b.uuid, 0))
