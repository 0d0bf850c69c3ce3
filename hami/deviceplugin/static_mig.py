"""Which cards are shared and which MIG devices are offered, by mode and MIG strategy (spec/node 2.2, 5.1). Pure.

The strategies are those of NVIDIA's plugin, and so are its words where a layout does not suit one. A card in MIG mode
cannot be shared as a whole: where no strategy offers its instances it is left out, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from hami.deviceplugin.mig_cards import may_be_mig_card, name_of
from hami.deviceplugin.mig_setup import MigDevice, devices_of
from hami.deviceplugin.settings import MigStrategy, PluginSettings
from hami.nvml.probe import CardFacts
from hami.vendors.nvidia.names import MIG_RESOURCE_PREFIX, MODE_MIG

_NOT_MIG_AND_MIG: Final = "all devices on the node must be configured with the same migEnabled value"
_WAITING: Final = "MIG mode is on until the last pod of operatingmode mig has ended"
_UNLIKE: Final = "invalid MIG configuration: more than one MIG device type present on node"


class Offers(msgspec.Struct, frozen=True):
    """The node's cards, sorted; hidden ones are gone already."""

    shared: tuple[CardFacts, ...] = ()
    """Cards that are offered in shares, and, in mode mig, those whose instances are made as pods need them."""
    static: dict[str, tuple[MigDevice, ...]] = {}
    """Resource -> MIG devices that an administrator made."""
    left_out: dict[str, str] = {}
    """Card -> why it is not offered."""
    problem: str = ""
    """Why the strategy cannot be served at all."""


def sort_cards(cards: Sequence[CardFacts], settings: PluginSettings, owned: frozenset[str] = frozenset()) -> Offers:
    """What is offered of `cards`. In another mode than mig, `owned` ones wait for the pods of that mode to end."""
    if settings.mode == MODE_MIG:
        return _made_as_needed(cards, settings)
    waiting = {card.uuid: _WAITING for card in cards if card.mig_enabled and card.uuid in owned}
    offers = _as_they_are([card for card in cards if card.uuid not in waiting], settings)
    return msgspec.structs.replace(offers, left_out={**waiting, **offers.left_out})


def _as_they_are(cards: Sequence[CardFacts], settings: PluginSettings) -> Offers:
    mig = [card for card in cards if card.mig_enabled]
    plain = tuple(card for card in cards if not card.mig_enabled)
    if not mig:
        return Offers(plain)
    if settings.mig_strategy is MigStrategy.SINGLE:
        return _single(plain, mig, settings.nvidia.resource_count_name)
    if settings.mig_strategy is MigStrategy.MIXED:
        return _mixed(plain, mig)
    why = "MIG mode is on: its instances are offered with migstrategy mixed or single, or made in operatingmode mig"
    return Offers(plain, left_out={card.uuid: why for card in mig})


def mig_resource(profile: str) -> str:
    """`nvidia.com/mig-1g.5gb`; a plus sign cannot be in a resource's name."""
    return MIG_RESOURCE_PREFIX + profile.replace("+", ".")


def _made_as_needed(cards: Iterable[CardFacts], settings: PluginSettings) -> Offers:
    shared: list[CardFacts] = []
    left_out: dict[str, str] = {}
    for card in cards:
        if not may_be_mig_card(card, settings):
            left_out[card.uuid] = f"no allowed MIG profile for {card.name}"
        elif not card.mig_enabled:
            left_out[card.uuid] = "MIG mode is not on yet"
        else:
            # Instances come and go with pods: what is offered does not change with them.
            shared.append(msgspec.structs.replace(card, mig_instances=()))
    return Offers(tuple(shared), left_out=left_out)


def _single(plain: tuple[CardFacts, ...], mig: Sequence[CardFacts], resource: str) -> Offers:
    devices = devices_of(mig)
    empty = next((card for card in mig if not devices_of([card])), None)
    problem = ""
    if empty is not None:
        problem = (
            "invalid MIG configuration: at least one device with migEnabled=true was not configured correctly:"
            f" device {empty.index} has no MIG devices configured"
        )
    elif len({_kind(device) for device in devices}) > 1:
        problem = _UNLIKE
    elif plain:
        problem = _NOT_MIG_AND_MIG
    if problem:
        return Offers(left_out={card.uuid: problem for card in (*plain, *mig)}, problem=problem)
    return Offers(static={resource: devices})


def _mixed(plain: tuple[CardFacts, ...], mig: Sequence[CardFacts]) -> Offers:
    static: dict[str, tuple[MigDevice, ...]] = {}
    left_out: dict[str, str] = {}
    for card in mig:
        whole = [device for device in devices_of([card]) if device.compute.slices == device.instance.slices]
        if not whole:
            left_out[card.uuid] = f"device {card.index} has no MIG devices configured"
        for device in whole:
            resource = mig_resource(name_of(card, device.instance))
            static[resource] = (*static.get(resource, ()), device)
    return Offers(plain, dict(sorted(static.items())), left_out)


def _kind(device: MigDevice) -> tuple[str, int, bool]:
    return (
        name_of(device.card, device.instance, device.compute.slices),
        device.instance.memory_mib,
        device.instance.media,
    )
