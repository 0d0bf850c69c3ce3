"""A node as it would be if some of its pods were gone, for preemption and for explanations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

import msgspec

from hami.core.model import NO_USE, MigPlacement, NodeState
from hami.placement.claims import Claim
from hami.placement.world import World


def node_after(world: World, name: str, gone: Collection[str]) -> NodeState | None:
    """The evaluator's state without the pods `gone` (uids); None for a node that takes no shares."""
    view, record = world.view(name), world.inventory.get(name)
    if view is None or view.problem or record is None:
        return None
    left = [claim for uid in world.ledger.uids_on(name) - set(gone) if (claim := world.ledger.get(uid)) is not None]
    freed = [claim for uid in gone if (claim := world.ledger.get(uid)) is not None and claim.node == name]
    less = {card: NO_USE for claim in freed for card, _ in claim.charges}
    for claim in freed:
        for card, use in claim.charges:
            less[card] = less[card].plus(use)
    # A MIG card with shares whose slices nobody wrote down is out: it comes back when the last such pod goes.
    devices = tuple(
        device
        if device.mode != "mig" or not _unsliced(left, device.id)
        else msgspec.structs.replace(device, healthy=False)
        for device in record.view.devices
    )
    pairs = zip(view.state.devices, view.state.uses, strict=True)
    uses = tuple(use.minus(less.get(device.id, NO_USE)) for device, use in pairs)
    return msgspec.structs.replace(view.state, devices=devices, uses=uses, mig_taken=_slices(left))


def _unsliced(claims: list[Claim], card: str) -> bool:
    for claim in claims:
        slices = Counter(each for each, _ in claim.slices)
        if any(device == card and slices[card] < use.slots for device, use in claim.charges):
            return True
    return False


def _slices(claims: list[Claim]) -> dict[str, tuple[MigPlacement, ...]]:
    taken: dict[str, tuple[MigPlacement, ...]] = {}
    for claim in sorted(claims, key=lambda claim: claim.uid):
        for card, placement in claim.slices:
            taken[card] = (*taken.get(card, ()), placement)
    return taken
