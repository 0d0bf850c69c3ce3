"""Choosing cards of one node for one request: the checks of spec/scheduler 4.6 in upstream's order.

Reasons and counts are upstream's (4.7): each refused visit of a card counts once, a MIG card is visited until it
refuses, cards given up for another NUMA group count as NumaNotFit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

from hami.core.device_type import CardPick, MigSlice, ShareCheck
from hami.core.model import Device, DeviceRequest, DeviceShare, MigPlacement, NodeState, Policies, Selectors, Use
from hami.core.policy_words import MUTEX, TOPOLOGY
from hami.core.reasons import Reason, Rejection, rejection
from hami.vendors.nvidia.mig import choose_slice
from hami.vendors.nvidia.names import MODE_MIG, WORD
from hami.vendors.nvidia.order import tried_order
from hami.vendors.nvidia.topology import best_linked, loneliest

FULL_CORES: Final = 100


class _Taken(msgspec.Struct, frozen=True):
    """A visit that passed every check."""

    position: int
    share: DeviceShare
    slice: MigSlice | None


def pick_cards(
    state: NodeState, request: DeviceRequest, selectors: Selectors, policies: Policies, quota: ShareCheck | None
) -> CardPick | Rejection:
    """Cards for `request` in the order taken, or why the node has none."""
    positions = [position for position, device in enumerate(state.devices) if device.serves(WORD)]
    if request.count > len(positions) and not slices_possible(state, positions, selectors):
        return Rejection(Reason.NODE_INSUFFICIENT_DEVICE, ((Reason.NODE_INSUFFICIENT_DEVICE, 0),), len(positions))
    walk = _Walk(state, request, selectors, policies, quota)
    taken = walk.choose(tried_order(state, positions, request, policies, numa_bind=selectors.numa_bind))
    if taken is None:
        return rejection(walk.counts, len(positions))
    slices = tuple(each.slice for each in taken)
    cards = tuple((each.position, each.share) for each in taken)
    return CardPick(cards, slices if any(slices) else ())


def slices_possible(state: NodeState, positions: Iterable[int], selectors: Selectors) -> bool:
    """Whether one card may serve several times: a MIG card, and the pod's mode annotation does not exclude MIG."""
    mig_allowed = not selectors.modes or MODE_MIG in selectors.modes
    return mig_allowed and any(state.devices[position].mode == MODE_MIG for position in positions)


class _Walk:
    """One pass over the cards of a node. `counts` says how many visits each reason refused."""

    def __init__(
        self,
        state: NodeState,
        request: DeviceRequest,
        selectors: Selectors,
        policies: Policies,
        quota: ShareCheck | None,
    ) -> None:
        self.counts: Counter[Reason] = Counter()
        self._state = state
        self._request = request
        self._cores = cores_of(request)
        self._selectors = selectors
        self._quota = quota
        self._mutex = MUTEX in policies.device
        self._collect_all = TOPOLOGY in policies.device
        # A single card lies on a single NUMA node whatever is chosen.
        self._groups_matter = selectors.numa_bind and not (self._collect_all and request.count == 1)

    def choose(self, order: Iterable[int]) -> list[_Taken] | None:
        """The cards taken, or None with the reasons in `counts`."""
        groups: list[list[_Taken]] = [[]]
        numa: int | None = None
        for position in order:
            device = self._state.devices[position]
            reason = self._unusable(device, self._state.uses[position])
            if reason is not None:
                self.counts[reason] += 1
                continue
            if self._groups_matter and device.numa != numa:
                numa = device.numa
                self._leave_group(groups)
            taken = groups[-1]
            self._visit(position, device, taken)
            if not self._collect_all and len(taken) >= self._request.count:
                return taken
        best = self._best_of(groups) if self._collect_all else None
        if best is None and groups[-1]:
            self.counts[Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST] = len(groups[-1])
        return best

    def _leave_group(self, groups: list[list[_Taken]]) -> None:
        if len(groups[-1]) < self._request.count:
            self.counts[Reason.NUMA_NOT_FIT] += len(groups[-1])
            groups.pop()
        groups.append([])

    def _best_of(self, groups: list[list[_Taken]]) -> list[_Taken] | None:
        """The best linked cards over all NUMA groups that are large enough; of equals the group tried first."""
        count, scores = self._request.count, self._state.pair_scores
        best: list[_Taken] | None = None
        best_total = 0
        for group in groups:
            if len(group) < count:
                continue
            chosen = self._linked(group)
            ids = [each.share.device_id for each in chosen]
            links = sum(scores.get(left, {}).get(right, 0) for at, left in enumerate(ids) for right in ids[at + 1 :])
            if best is None or links > best_total:
                best, best_total = chosen, links
        return best

    def _linked(self, group: list[_Taken]) -> list[_Taken]:
        count, scores = self._request.count, self._state.pair_scores
        if len(group) == count:
            return group
        ids = [each.share.device_id for each in group]
        if count == 1:
            return [group[loneliest(ids, scores)]]
        return [group[position] for position in best_linked(ids, count, scores)]

    def _unusable(self, device: Device, use: Use) -> Reason | None:
        """Checks 1 to 3: what does not depend on how much is asked."""
        if not device.healthy or unknown_slices(self._state, device, use):
            return Reason.CARD_NOT_HEALTH
        if device.id in self._state.cordoned:
            return Reason.CARD_CORDONED
        return None if type_matches(device, self._selectors) else Reason.CARD_TYPE_MISMATCH

    def _visit(self, position: int, device: Device, taken: list[_Taken]) -> None:
        """Takes the card once, a MIG card as often as it can and the request needs."""
        use = self._state.uses[position]
        placed = self._state.mig_taken.get(device.id, ())
        most = self._request.count if device.mode == MODE_MIG else 1
        for _ in range(most):
            outcome = self._take(position, device, use, placed, taken)
            if isinstance(outcome, Reason):
                self.counts[outcome] += 1
                return
            taken.append(outcome)
            if outcome.slice is None or (not self._collect_all and len(taken) >= self._request.count):
                return
            use = use.plus(Use(1, outcome.share.memory_mib, outcome.share.core_percent))
            placed = (*placed, outcome.slice.placement)

    def _take(
        self, position: int, device: Device, use: Use, placed: tuple[MigPlacement, ...], taken: list[_Taken]
    ) -> _Taken | Reason:
        """Checks 5 to 13. The quota is asked about what will be charged: a slice's own memory and cores."""
        memory_mib, cores = memory_of(device, self._request), self._cores
        share, mig_slice = DeviceShare(device.id, WORD, memory_mib, cores), None
        if device.mode == MODE_MIG:
            found = choose_slice(device, memory_mib, placed, percent=not self._request.memory_mib)
            if found is not None:
                profile, mig_slice = found
                share = DeviceShare(device.id, WORD, profile.memory_mib, profile.core_percent)
        reason = self._refused_identity(device, use)
        if reason is None and self._quota is not None and not self._quota([*(each.share for each in taken), share]):
            reason = Reason.RESOURCE_QUOTA_NOT_FIT
        reason = reason or refused_amount(device, use, memory_mib, cores)
        if reason is None and device.mode == MODE_MIG and mig_slice is None:
            reason = Reason.CARD_MIG_TOPOLOGY_INFEASIBLE
        return reason or _Taken(position, share, mig_slice)

    def _refused_identity(self, device: Device, use: Use) -> Reason | None:
        """Checks 5 to 7."""
        if not id_matches(device, self._selectors):
            return Reason.CARD_UUID_MISMATCH
        if device.slots <= use.slots:
            return Reason.CARD_TIME_SLICING_EXHAUSTED
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT if self._mutex and use.slots > 0 else None


def unknown_slices(state: NodeState, device: Device, use: Use) -> bool:
    """Whether a MIG card serves pods whose slices nobody wrote down, so that no place on it is known to be free."""
    return device.mode == MODE_MIG and use.slots > len(state.mig_taken.get(device.id, ()))


def refused_amount(device: Device, use: Use, memory_mib: int, core_percent: int) -> Reason | None:
    """Checks 9 to 12: memory, cores, and exclusive use in both directions."""
    if device.memory_mib - use.memory_mib < memory_mib:
        return Reason.CARD_INSUFFICIENT_MEMORY
    if device.core_percent - use.core_percent < core_percent:
        return Reason.CARD_INSUFFICIENT_CORE
    if device.core_percent == FULL_CORES and core_percent == FULL_CORES and use.slots > 0:
        return Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT
    if device.core_percent != 0 and use.core_percent == device.core_percent and core_percent == 0:
        return Reason.CARD_COMPUTE_UNITS_EXHAUSTED
    return None


def memory_of(device: Device, request: DeviceRequest) -> int:
    """MiB that the request means on this card."""
    return request.memory_mib or device.memory_mib * request.memory_percent // 100


def cores_of(request: DeviceRequest) -> int:
    """Percent of a card's cores that the request means; what was annotated before there was a bound may be more."""
    return min(request.core_percent, FULL_CORES)


def type_matches(device: Device, selectors: Selectors) -> bool:
    """Type lists (case-insensitive parts of the model name, deny wins) and the mode annotation."""
    model = device.type.lower()
    if selectors.use_types and not any(word in model for word in selectors.use_types):
        return False
    if any(word in model for word in selectors.nouse_types):
        return False
    return not selectors.modes or device.mode in selectors.modes


def id_matches(device: Device, selectors: Selectors) -> bool:
    """Id lists, deny wins."""
    return (not selectors.use_ids or device.id in selectors.use_ids) and device.id not in selectors.nouse_ids
