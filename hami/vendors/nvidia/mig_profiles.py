"""Which MIG profiles a card may use: the operator's allowlist against what the driver offers (spec/node 5.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hami.core.model import MigPlacement, MigProfile
from hami.vendors.nvidia.config import MigAllowlistEntry

_NAME: Final = re.compile(r"([0-9]+)g\..+", re.ASCII)


class ProfileOffer(msgspec.Struct, frozen=True):
    """One GPU instance profile that the driver offers for a card, by its number of compute slices."""

    slices: int
    """The N of `Ng.…`."""
    memory_mib: int
    slice_count: int
    multiprocessors: int
    placements: tuple[MigPlacement, ...] = ()


class AllowedProfiles(msgspec.Struct, frozen=True):
    """Profiles as they are registered, and how many instances of the one that fits most often a card can hold."""

    profiles: tuple[MigProfile, ...] = ()
    instances: int = 0
    missing: tuple[str, ...] = ()
    """Allowed names that the driver does not offer on this card."""


def profile_slices(name: str) -> int | None:
    """The N of a profile name `Ng.…`; None for a name of another form."""
    match = _NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def allowed_profiles(
    model: str, offers: Sequence[ProfileOffer], allowlist: Iterable[MigAllowlistEntry]
) -> AllowedProfiles:
    """Profiles of the first entry whose models occur in the card's name; nothing if there is no such entry.

    A profile's cores are its share of the multiprocessors of the largest profile, rounded up.
    """
    entry = next((each for each in allowlist if any(part in model for part in each.models)), None)
    if entry is None:
        return AllowedProfiles()
    by_slices = {offer.slices: offer for offer in offers}
    largest = max((offer.multiprocessors for offer in offers), default=0) or 1
    found: list[MigProfile] = []
    missing: list[str] = []
    for name in entry.profiles:
        offer = by_slices.get(profile_slices(name) or 0)
        if offer is None:
            missing.append(name)
            continue
        cores = -(-offer.multiprocessors * 100 // largest)
        found.append(MigProfile(name, offer.memory_mib, cores, offer.slice_count, offer.placements))
    instances = max((_disjoint(profile.placements) for profile in found), default=0)
    return AllowedProfiles(tuple(found), instances, tuple(missing))


def _disjoint(placements: Iterable[MigPlacement]) -> int:
    """How many of the placements fit beside each other: earliest end first is optimal."""
    count = end = 0
    for placement in sorted(placements, key=lambda each: each.start + each.size):
        if placement.start >= end:
            count, end = count + 1, placement.start + placement.size
    return count
