"""MIG: which profile and placement a request gets on one card (4.6)."""

from __future__ import annotations

from tests.reference.model import Card, MigSlice, Profile


def choose(card: Card, mem: int, by_share: bool = False) -> tuple[Profile, MigSlice] | None:
    """Smallest memory that holds `mem`, then fewest slices, among profiles with a free placement.

    A share of the card (a whole one, for example) that no profile holds means the largest profile.
    """
    if by_share:
        mem = min(mem, max((profile.memory_mib for profile in card.profiles), default=0))
    for profile in sorted(card.profiles, key=lambda p: (p.memory_mib, p.slices)):
        if profile.memory_mib < mem:
            continue
        from_the_top = profile.name.startswith(("1g.", "3g."))
        for start, size in sorted(profile.placements, reverse=from_the_top):
            if all(start + size <= at or at + length <= start for at, length in card.taken_slices):
                return profile, MigSlice(profile.name, start, size)
    return None
