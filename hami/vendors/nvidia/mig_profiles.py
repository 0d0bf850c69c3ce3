"""Which MIG profiles a card may use: the operator's allowlist against what the driver offers (spec/node 5.2)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hami.core.model import MigPlacement, MigProfile, MigProfileOffer
from hami.vendors.nvidia.config import MigAllowlistEntry

_NAME: Final = re.compile(r"([0-9]+)g\..+", re.ASCII)
_WORDS: Final = re.compile(r"[0-9A-Z]+", re.ASCII)
_PRODUCT: Final = re.compile(r"[A-Z]+[0-9]+[A-Z]*", re.ASCII)
_MEDIA_SUFFIX: Final = "+me"
_MEMORY_EIGHTHS: Final = 8
_MIB_PER_GIB: Final = 1024


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


def profile_name(slices: int, memory_mib: int, card_memory_mib: int, *, media: bool = False, compute: int = 0) -> str:
    """NVIDIA's name of a profile: `1g.5gb`, `1g.5gb+me`, and `1c.2g.10gb` for a part of an instance's `compute`.

    The size is the instance's share of the card in eighths, rounded up, of the card's GiB: 4864 of 40960 MiB are 5.
    """
    share = -(-memory_mib * _MEMORY_EIGHTHS // max(card_memory_mib, 1))
    # Halves go up, as in NVIDIA's plugin; whole numbers, so that no float decides.
    gib = (share * -(-card_memory_mib // _MIB_PER_GIB) * 2 + _MEMORY_EIGHTHS) // (2 * _MEMORY_EIGHTHS)
    part = f"{compute}c." if compute and compute != slices else ""
    return f"{part}{slices}g.{gib}gb{_MEDIA_SUFFIX if media else ''}"


def find_offer(name: str, offers: Sequence[MigProfileOffer], card_memory_mib: int) -> MigProfileOffer | None:
    """The profile that a name means: the one called so, else the plain one of that many slices (spec/node 5.2)."""
    for offer in offers:
        if profile_name(offer.slices, offer.memory_mib, card_memory_mib, media=offer.media) == name:
            return offer
    slices = profile_slices(name)
    return next((offer for offer in offers if offer.slices == slices and not offer.media), None)


def allowed_profiles(
    model: str, offers: Sequence[MigProfileOffer], allowlist: Sequence[MigAllowlistEntry], card_memory_mib: int = 0
) -> AllowedProfiles:
    """Profiles of the first entry whose models name the card; nothing if there is no such entry.

    Without any entry everything that the driver offers is allowed, variants with media extensions left out. A
    profile's cores are its share of the multiprocessors of the largest profile, rounded up.
    """
    own = [
        profile_name(each.slices, each.memory_mib, card_memory_mib, media=each.media)
        for each in offers
        if not each.media
    ]
    entry = _entry_of(model, own, allowlist)
    if allowlist and entry is None:
        return AllowedProfiles()
    largest = max((offer.multiprocessors for offer in offers), default=0) or 1
    found: list[MigProfile] = []
    missing: list[str] = []
    for name in dict.fromkeys(entry.profiles if entry else own):
        offer = find_offer(name, offers, card_memory_mib)
        if offer is None:
            missing.append(name)
            continue
        cores = -(-offer.multiprocessors * 100 // largest)
        found.append(MigProfile(name, offer.memory_mib, cores, offer.slice_count, offer.placements))
    return AllowedProfiles(tuple(found), most_instances(found), tuple(missing))


def without_places(allowed: AllowedProfiles, taken: Sequence[MigPlacement]) -> AllowedProfiles:
    """The profiles without the places that overlap what somebody else holds on the card."""
    if not taken:
        return allowed
    free = [msgspec.structs.replace(each, placements=_beside(each.placements, taken)) for each in allowed.profiles]
    left = tuple(profile for profile in free if profile.placements)
    return AllowedProfiles(left, most_instances(left), allowed.missing)


def most_instances(profiles: Iterable[MigProfile]) -> int:
    """How often the profile that fits most often fits on an empty card."""
    return max((_disjoint(profile.placements) for profile in profiles), default=0)


def model_allowed(model: str, allowlist: Sequence[MigAllowlistEntry]) -> bool:
    """Whether the allowlist may mean a card of which nothing but the name is known."""
    parts = [part for entry in allowlist for part in entry.models]
    return not allowlist or bool(_products(parts) & set(_words(model))) or any(model_matches(p, model) for p in parts)


def _entry_of(model: str, own: Sequence[str], allowlist: Iterable[MigAllowlistEntry]) -> MigAllowlistEntry | None:
    """The entry for a card, by its name; else the one for its product whose profiles are those of the card.

    Several names of HAMi's default list do not occur in what NVML answers ("H100-SXM5-80GB" is "NVIDIA H100 80GB
    HBM3", trap T-31), but their profiles tell which card is meant.
    """
    entries = list(allowlist)
    named = (each for each in entries if any(model_matches(part, model) for part in each.models))
    same = (
        each
        for each in entries
        if _products(each.models) & set(_words(model)) and all(name in own for name in each.profiles[:-1] or ("",))
    )
    return next(named, None) or next(same, None)


def model_matches(part: str, model: str) -> bool:
    """Whether a model of the allowlist means a card of NVML's name `model`.

    All its words in any order, or a run of characters that ends no number in the middle: `A100-SXM` is in
    `A100-SXM4`, `H20` not in `H200` (trap T-31).
    """
    words, wanted = _words(model), _words(part)
    if not wanted:
        return False
    if set(wanted) <= set(words):
        return True
    spaced, run = " ".join(words), " ".join(wanted)
    ends_in_number = run[-1].isdigit()
    pattern = rf"(?<![0-9A-Z]){re.escape(run)}" + (r"(?![0-9A-Z])" if ends_in_number else "")
    return re.search(pattern, spaced) is not None


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.upper())


def _products(models: Iterable[str]) -> set[str]:
    """Words such as H100 or GH200; the size of the memory (80GB) begins with a digit and is none."""
    return {word for model in models for word in _words(model) if _PRODUCT.fullmatch(word)}


def _beside(placements: Iterable[MigPlacement], taken: Sequence[MigPlacement]) -> tuple[MigPlacement, ...]:
    return tuple(each for each in placements if not any(each.overlaps(other) for other in taken))


def _disjoint(placements: Iterable[MigPlacement]) -> int:
    """How many of the placements fit beside each other: earliest end first is optimal."""
    count = end = 0
    for placement in sorted(placements, key=lambda each: each.start + each.size):
        if placement.start >= end:
            count, end = count + 1, placement.start + placement.size
    return count
