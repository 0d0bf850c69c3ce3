"""The cards on the board as they are registered with the scheduler (spec/node 3.2)."""

from __future__ import annotations

import msgspec

from hami.core.model import Device
from hami.deviceplugin.board import BoardState
from hami.deviceplugin.mig_cards import allowed_on
from hami.deviceplugin.settings import PluginSettings
from hami.nvml.probe import CardFacts
from hami.vendors.nvidia.names import MODE_MIG
from hami.vendors.nvidia.registration import ProbedCard, RegistrationSettings, Skipped, registered_devices


def registered(state: BoardState, settings: PluginSettings) -> tuple[tuple[Device, ...], tuple[Skipped, ...]]:
    """Cards in order of their index, and those that are not registered, each with the reason."""
    nvidia = settings.nvidia
    rules = RegistrationSettings(
        split_count=state.replicas,
        memory_scaling=nvidia.device_memory_scaling,
        core_scaling=nvidia.device_core_scaling,
        preconfigured_memory_mib=nvidia.pre_configured_device_memory,
        mode=settings.mode,
    )
    devices, skipped = registered_devices((_probed(card, state, settings) for card in state.cards), rules)
    return devices, (*skipped, *(Skipped(uuid, why) for uuid, why in state.left_out.items()))


def _probed(card: CardFacts, state: BoardState, settings: PluginSettings) -> ProbedCard:
    facts = ProbedCard(card.uuid, card.index, card.name, card.memory_bytes, card.numa, state.healthy(card.uuid))
    if settings.mode != MODE_MIG:
        return facts
    # Without the places that nobody can have now: the scheduler shall not choose them.
    allowed = allowed_on(card, settings, state.blocked.get(card.uuid, ()))
    return msgspec.structs.replace(facts, mig_profiles=allowed.profiles, mig_instances=allowed.instances)
