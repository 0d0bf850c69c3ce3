"""MIG slices: which profile, and where on the card (spec/scheduler 4.6, spec/node 5.3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from hami.core.device_type import MigSlice
from hami.core.model import Device, MigPlacement, MigProfile

_HIGH_START_FIRST: Final = ("1g.", "3g.")


def choose_slice(
    device: Device, memory_mib: int, taken: Sequence[MigPlacement], *, percent: bool
) -> tuple[MigProfile, MigSlice] | None:
    """The smallest profile of at least `memory_mib` that still has a free place; None if there is none.

    Less memory wins, then fewer slices. With `percent` the size came from a share of the card, which may be more than
    the largest profile holds (a whole card, for example); the largest profile is then meant.
    """
    wanted = memory_mib
    if percent:
        wanted = min(wanted, max((profile.memory_mib for profile in device.mig_profiles), default=0))
    for profile in sorted(device.mig_profiles, key=lambda each: (each.memory_mib, each.slice_count, each.name)):
        if profile.memory_mib >= wanted:
            placement = _free_place(profile, taken)
            if placement is not None:
                return profile, MigSlice(profile.name, placement)
    return None


def _free_place(profile: MigProfile, taken: Iterable[MigPlacement]) -> MigPlacement | None:
    high_first = profile.name.startswith(_HIGH_START_FIRST)
    held = tuple(taken)
    for placement in sorted(profile.placements, key=lambda each: each.start, reverse=high_first):
        if not any(placement.overlaps(other) for other in held):
            return placement
    return None
