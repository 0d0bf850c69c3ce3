"""The exact evaluator: does a pod fit on a node, with which cards, or why not (spec/scheduler 4.3, 4.6, 4.10).

Sidecars hold their cards for the pod's life, so they are placed first; each init container is tried alone beside
them; app containers are placed beside them one after another. This is the charge that `core.allocation` computes, so
what fits here never exceeds a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from hami.core.allocation import charge, effective_use, uses_by_card
from hami.core.codec import MigAllocation
from hami.core.device_type import CardPick, DeviceType, MigSlice, Registry, ShareCheck
from hami.core.model import (
    NO_USE,
    Allocation,
    Charge,
    ContainerKind,
    ContainerShares,
    DeviceRequest,
    DeviceShare,
    NodeState,
    PodRequest,
    Use,
)
from hami.core.reasons import Reason, Rejection, rejection

QuotaRoom = Callable[[str, Use], bool]
"""Whether the namespace may hold this effective use of this vendor (word) by the pod at hand."""

ORDER: Final = (ContainerKind.SIDECAR, ContainerKind.INIT, ContainerKind.APP)
"""In which order containers get their cards."""


class Fit(msgspec.Struct, frozen=True):
    """Where the pod's shares lie: raw lists per container, what they charge, and MIG reservations."""

    allocation: Allocation
    charge: Charge
    mig: tuple[MigAllocation, ...] = ()


def evaluate(
    state: NodeState, request: PodRequest, registry: Registry, quota: QuotaRoom | None = None
) -> Fit | Rejection:
    """Places every container of `request` on the node as it is in `state`; changes nothing."""
    placing = Placing(request, {vendor.word: vendor for vendor in registry}, quota)
    for kind in ORDER:
        before = state
        for index, container in enumerate(request.containers):
            if container.kind is not kind or not container.devices:
                continue
            after = placing.place(state, index)
            if isinstance(after, Rejection):
                return after
            state = before if kind is ContainerKind.INIT else after
    return placing.conflict(state) or placing.fit(registry)


class Placing:
    """Shares and slices of the containers placed so far, by container index. `core.explain` uses it, too."""

    def __init__(self, request: PodRequest, vendors: dict[str, DeviceType], quota: QuotaRoom | None) -> None:
        self._request = request
        self._vendors = vendors
        self._quota = quota
        self._shares: dict[str, list[ContainerShares]] = {}
        self._slices: list[tuple[int, int, DeviceShare, MigSlice]] = []

    def place(self, state: NodeState, index: int) -> NodeState | Rejection:
        """The state with the container's shares in it."""
        for request in self._request.containers[index].devices:
            after = self.place_request(state, index, request)
            if isinstance(after, Rejection):
                return after
            state = after
        return state

    def place_request(self, state: NodeState, index: int, request: DeviceRequest) -> NodeState | Rejection:
        """The state with the shares of one request of the container in it."""
        vendor = self._vendors.get(request.vendor)
        if vendor is None:
            return Rejection("Device type not found")
        selectors = self._request.selectors_of(request.vendor)
        check = self.quota_check(vendor, index)
        picked = vendor.pick(state, request, selectors, self._request.policies, check)
        if isinstance(picked, Rejection):
            return picked
        self._record(vendor.word, index, picked)
        return _charged(state, picked, vendor)

    def shares(self, word: str, index: int) -> ContainerShares:
        """What the container got of a vendor so far."""
        return self._shares[word][index]

    def fit(self, registry: Registry) -> Fit:
        allocation: Allocation = {word: tuple(containers) for word, containers in self._shares.items()}
        kinds = [container.kind for container in self._request.containers]
        mig = tuple(
            MigAllocation(index, position, share.device_id, mig_slice.profile, mig_slice.placement)
            for index, position, share, mig_slice in sorted(self._slices, key=lambda each: each[:2])
        )
        return Fit(allocation, charge(allocation, kinds, registry), mig)

    def conflict(self, state: NodeState) -> Rejection | None:
        """Slices of an init container must be free or the same as slices of the pod's other containers.

        The plugin keeps every instance of a pod for its life, so overlapping ones could not be made.
        """
        for at, (left_index, _, left, left_slice) in enumerate(self._slices):
            for right_index, _, right, right_slice in self._slices[at + 1 :]:
                same_card = left.device_id == right.device_id and left_index != right_index
                if same_card and left_slice != right_slice and left_slice.placement.overlaps(right_slice.placement):
                    candidates = sum(device.serves(left.type) for device in state.devices)
                    return rejection({Reason.CARD_MIG_TOPOLOGY_INFEASIBLE: 1}, candidates)
        return None

    def _record(self, word: str, index: int, picked: CardPick) -> None:
        containers = self._shares.setdefault(word, [()] * len(self._request.containers))
        containers[index] = tuple(share for _, share in picked.cards)
        for position, mig_slice in enumerate(picked.slices):
            if mig_slice is not None:
                self._slices.append((index, position, containers[index][position], mig_slice))

    def quota_check(self, vendor: DeviceType, index: int) -> ShareCheck | None:
        """Whether shares of this container, beside what is placed already, stay within the quota."""
        room = self._quota
        if room is None:
            return None
        kinds = [container.kind for container in self._request.containers]
        placed = list(self._shares.get(vendor.word, [()] * len(kinds)))

        def check(shares: Sequence[DeviceShare]) -> bool:
            placed[index] = tuple(shares)
            cards = effective_use([uses_by_card(each, vendor.use_of) for each in placed], kinds)
            return room(vendor.word, sum(cards.values(), start=NO_USE))

        return check


def _charged(state: NodeState, picked: CardPick, vendor: DeviceType) -> NodeState:
    uses = list(state.uses)
    for position, share in picked.cards:
        uses[position] = uses[position].plus(vendor.use_of(share))
    taken = state.mig_taken
    for (_, share), mig_slice in zip(picked.cards, picked.slices, strict=False):
        if mig_slice is not None:
            taken = {**taken, share.device_id: (*taken.get(share.device_id, ()), mig_slice.placement)}
    return msgspec.structs.replace(state, uses=tuple(uses), mig_taken=taken)
