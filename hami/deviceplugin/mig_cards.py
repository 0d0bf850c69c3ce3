"""A card's MIG facts in the words of the vendor's rules: profiles that it may use, and the names of its instances."""

from __future__ import annotations

from collections.abc import Sequence

from hami.core.model import MigPlacement, MigProfileOffer
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts, MigInstanceFacts
from hami.vendors.nvidia.mig_profiles import (
    AllowedProfiles,
    allowed_profiles,
    find_offer,
    model_allowed,
    profile_name,
    without_places,
)
from hami.vendors.nvidia.registration import card_type
from hami.vendors.nvidia.requests import MIB


def allowed_on(card: CardFacts, settings: PluginSettings, taken: Sequence[MigPlacement] = ()) -> AllowedProfiles:
    """Profiles that the node's configuration allows on the card, without places that overlap `taken`."""
    found = allowed_profiles(
        card_type(card.name), card.mig_profiles, settings.nvidia.mig_profile_allowlist, card_memory_mib(card)
    )
    return without_places(found, taken)


def may_be_mig_card(card: CardFacts, settings: PluginSettings) -> bool:
    """Whether the card can have instances that the configuration allows, as far as that can be told yet.

    A driver may name profiles only while MIG mode is on.
    """
    if card.mig_enabled or card.mig_profiles:
        return bool(allowed_on(card, settings).profiles)
    return card.mig_capable and model_allowed(card_type(card.name), settings.nvidia.mig_profile_allowlist)


def profile_of(card: CardFacts, name: str) -> MigProfileOffer | None:
    """The driver's profile that a reservation's name means on this card."""
    return find_offer(name, card.mig_profiles, card_memory_mib(card))


def name_of(card: CardFacts, instance: MigInstanceFacts, compute_slices: int = 0) -> str:
    """NVIDIA's name of an instance's profile; `compute_slices` where a compute instance is only a part of it."""
    return profile_name(
        instance.slices, instance.memory_mib, card_memory_mib(card), media=instance.media, compute=compute_slices
    )


def card_memory_mib(card: CardFacts) -> int:
    """The card's memory; of one whose memory the driver does not tell, that of its largest profile."""
    if card.memory_bytes is not None:
        return card.memory_bytes // MIB
    return max((each.memory_mib for each in card.mig_profiles), default=0)
