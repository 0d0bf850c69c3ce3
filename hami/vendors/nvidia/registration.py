"""From what NVML says about a card to what is registered for it (spec/node 3.2).

Floating-point products are cut off, not rounded, as upstream does: a core scaling of 0.29 registers 28.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from hami.core.model import INT32_MAX, Device, MigProfile
from hami.vendors.nvidia.names import MODE_CORE, MODE_MIG, WORD
from hami.vendors.nvidia.requests import MIB

_NAME_PREFIX: Final = "NVIDIA"


class ProbedCard(msgspec.Struct, frozen=True):
    """One card as probed. `memory_bytes` is None where NVML does not support the question."""

    uuid: str
    index: int
    name: str
    memory_bytes: int | None
    numa: int = 0
    healthy: bool = True
    mig_profiles: tuple[MigProfile, ...] = ()
    """Allowed profiles with their placements; used in MIG mode only."""
    mig_instances: int = 0
    """Largest instance count over the allowed profiles."""


class RegistrationSettings(msgspec.Struct, frozen=True):
    """Values in force on this node: the device configuration, overridden by the node's own entry."""

    split_count: int = 10
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    preconfigured_memory_mib: int = 0
    mode: str = MODE_CORE


class Skipped(msgspec.Struct, frozen=True):
    """A card that is not registered, and why."""

    uuid: str
    why: str


def registered_device(facts: ProbedCard, settings: RegistrationSettings) -> Device | Skipped:
    """The card as it goes into the register annotation. Never registers 0 MiB as usable (report B86)."""
    mig = settings.mode == MODE_MIG
    if mig and not facts.mig_profiles:
        return Skipped(facts.uuid, f"no allowed MIG profile for {facts.name}")
    memory_mib = _memory_mib(facts, settings)
    core_percent = 100 if mig else int(settings.core_scaling * 100)
    slots = facts.mig_instances if mig else settings.split_count
    for what, number in (("memory", memory_mib), ("cores", core_percent), ("slots", slots)):
        if not 0 < number <= INT32_MAX:
            return Skipped(
                facts.uuid, f"{what} would be {number}, allowed are 1 to {INT32_MAX}{_advice(facts, number)}"
            )
    return Device(
        id=facts.uuid,
        index=facts.index,
        slots=slots,
        memory_mib=memory_mib,
        core_percent=core_percent,
        type=card_type(facts.name),
        numa=max(facts.numa, 0),
        healthy=facts.healthy,
        vendor=WORD,
        mode=settings.mode,
        mig_profiles=facts.mig_profiles if mig else (),
    )


def registered_devices(
    cards: Iterable[ProbedCard], settings: RegistrationSettings
) -> tuple[tuple[Device, ...], tuple[Skipped, ...]]:
    """What is registered, in the order of `cards`, and what is not."""
    outcomes = [registered_device(card, settings) for card in cards]
    devices = tuple(outcome for outcome in outcomes if isinstance(outcome, Device))
    return devices, tuple(outcome for outcome in outcomes if isinstance(outcome, Skipped))


def card_type(name: str) -> str:
    """NVML's name, with the vendor in front where the driver leaves it out."""
    return name if name.startswith(_NAME_PREFIX) else f"{_NAME_PREFIX}-{name}"


def _advice(facts: ProbedCard, number: int) -> str:
    """Cards that share the memory of the CPU tell none of their own (GB10, Jetson; HAMi #1511, #2087)."""
    if number or facts.memory_bytes is not None:
        return ""
    return "; the driver tells no memory of this card: give it as preConfiguredDeviceMemory (MiB)"


def _memory_mib(facts: ProbedCard, settings: RegistrationSettings) -> int:
    in_bytes = facts.memory_bytes
    real_mib = settings.preconfigured_memory_mib if in_bytes is None else in_bytes // MIB
    if settings.mode == MODE_MIG or settings.memory_scaling == 1:
        return real_mib
    return int(real_mib * settings.memory_scaling)
