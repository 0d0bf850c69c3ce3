"""The cards on the board as they are registered with the scheduler (spec/node 3.2)."""

from __future__ import annotations

from hami.core.model import Device
from hami.deviceplugin.board import BoardState
from hami.deviceplugin.settings import PluginSettings
from hami.vendors.nvidia.registration import ProbedCard, RegistrationSettings, Skipped, registered_devices


def registered(state: BoardState, settings: PluginSettings) -> tuple[tuple[Device, ...], tuple[Skipped, ...]]:
    """Cards in order of their index, and those that cannot be registered, each with the reason."""
    nvidia = settings.nvidia
    rules = RegistrationSettings(
        split_count=state.replicas,
        memory_scaling=nvidia.device_memory_scaling,
        core_scaling=nvidia.device_core_scaling,
        preconfigured_memory_mib=nvidia.pre_configured_device_memory,
        mode=settings.mode,
    )
    cards = (
        ProbedCard(card.uuid, card.index, card.name, card.memory_bytes, card.numa, state.healthy(card.uuid))
        for card in state.cards
    )
    return registered_devices(cards, rules)
