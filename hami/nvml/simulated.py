"""Cards out of a YAML profile (`profile_file`), for machines without GPUs: the same protocol as the driver."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from hami.core.errors import ConfigError, NvmlError
from hami.core.model import MigPlacement, MigProfileOffer
from hami.nvml.probe import (
    CRITICAL_ERROR,
    ECC_DOUBLE_BIT,
    NO_EVENTS,
    CardFacts,
    CardLoad,
    Cards,
    HealthEvent,
    MigInstanceFacts,
    PairFacts,
    ProcessFacts,
)
from hami.nvml.profile_file import CardKind, EccFault, MigProfile, Profile, XidFault, read_profile
from hami.nvml.simulated_mig import FIRST_VARIANT_NUMBER, PLAIN_NUMBERS, SimulatedGeometry, laid_out

_MIB: Final = 1024 * 1024
_SLOW_S: Final = 30.0
_POLL_S: Final = 0.1
_SOME_PID: Final = 4_000_000
_MIG_STATE: Final = "simulated-mig.json"
_UUID_NAMESPACE: Final = uuid.UUID("6f0d5d53-6b4f-5b9e-8c5a-3f7d3f0f7a10")


class SimulatedProbe:
    """Implements `DeviceProbe` from a profile file, which it reads again whenever the file changes."""

    def __init__(self, path: Path, node_name: str = "", state_dir: Path | None = None) -> None:
        """`state_dir`: where MIG instances are kept, so that they outlive the process as a driver's do."""
        self._geometry = SimulatedGeometry(state_dir / _MIG_STATE if state_dir else None)
        self._path = path
        self._node_name = node_name
        self._profile = read_profile(path)
        self._stamp = _stamp(path)
        self._happened: set[XidFault | EccFault | int] = set()

    async def cards(self) -> Cards:
        profile = await self._ask()
        cards = self._all_cards(profile)
        bad = {*profile.faults.unreadable}
        return Cards(
            cards=tuple(card for card in cards if card.index not in bad),
            problems=tuple(f"card {card.index}: Unknown Error" for card in cards if card.index in bad),
            driver_version=profile.driver_version,
        )

    async def pairs(self) -> tuple[PairFacts, ...]:
        profile = await self._ask()
        cards = self._all_cards(profile)
        kinds = [kind for kind in profile.cards for _ in range(kind.count)]
        return tuple(
            _pair(cards[first], cards[second], kinds[first], kinds[second])
            for first in range(len(cards))
            for second in range(first + 1, len(cards))
        )

    async def lost(self) -> dict[str, str]:
        profile = await self._ask()
        cards = self._all_cards(profile)
        return {card.uuid: "GPU is lost" for card in cards if card.index in profile.faults.lost}

    async def damaged(self) -> dict[str, str]:
        profile = await self._ask()
        cards = self._all_cards(profile)
        return {
            card.uuid: "a memory row could not be remapped" for card in cards if card.index in profile.faults.damaged
        }

    async def events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        deadline_s = asyncio.get_running_loop().time() + timeout_s
        while True:
            fresh = self._fresh_events(await self._ask())
            left_s = deadline_s - asyncio.get_running_loop().time()
            if fresh or left_s <= 0:
                return fresh
            await asyncio.sleep(min(_POLL_S, left_s))

    def _fresh_events(self, profile: Profile) -> tuple[HealthEvent, ...]:
        """What the profile says happened and was not told yet."""
        faults = profile.faults
        told: list[XidFault | EccFault | int] = [*faults.xids, *faults.ecc, *faults.no_events]
        found = [each for each in told if each not in self._happened]
        self._happened.update(found)
        uuids = {card.index: card.uuid for card in self._all_cards(profile)}
        return tuple(_event(each, uuids) for each in found)

    async def processes(self) -> tuple[ProcessFacts, ...]:
        profile = await self._ask()
        return tuple(ProcessFacts(uuid, _SOME_PID, 0) for uuid in profile.faults.in_use)

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        profile, card = await self._mig_step(uuid)
        self._geometry.set_mode(card, enabled=enabled, in_use=profile.faults.in_use)

    async def create_mig(self, uuid: str, profile: int, placement: MigPlacement) -> MigInstanceFacts:
        _, card = await self._mig_step(uuid)
        instance = self._geometry.create_gpu_instance(card, profile, placement)
        try:
            await self._mig_step(uuid)
            return self._geometry.create_compute_instance(card, instance)
        except NvmlError:
            self._geometry.destroy_gpu_instance(card, instance)
            raise

    async def destroy_mig(self, uuid: str, instance: int) -> None:
        profile, card = await self._mig_step(uuid)
        self._geometry.destroy_compute_instances(card, instance, in_use=profile.faults.in_use)
        await self._mig_step(uuid)
        self._geometry.destroy_gpu_instance(card, instance)

    async def loads(self) -> tuple[CardLoad, ...]:
        profile = await self._ask()
        kinds = [kind for kind in profile.cards for _ in range(kind.count)]
        silent = {*profile.faults.lost, *profile.faults.unreadable}
        return tuple(
            _load(card, kind)
            for card, kind in zip(self._all_cards(profile), kinds, strict=True)
            if card.index not in silent
        )

    async def close(self) -> None:
        return

    async def _mig_step(self, uuid: str) -> tuple[Profile, CardFacts]:
        """The card before the next step of a change. Raises NvmlError."""
        profile = await self._ask()
        if profile.faults.mig_step_s:
            await asyncio.sleep(profile.faults.mig_step_s)
        if profile.faults.mig_refused:
            raise NvmlError(profile.faults.mig_refused)
        card = next((each for each in self._all_cards(profile) if each.uuid == uuid), None)
        if card is None:
            raise NvmlError(f"{uuid}: Not Found")
        return profile, card

    async def _ask(self) -> Profile:
        """The profile as it is now. Raises NvmlError as its faults say, and where it cannot be read any more."""
        stamp = _stamp(self._path)
        if stamp != self._stamp:
            try:
                self._profile = read_profile(self._path)
            except ConfigError as error:
                raise NvmlError(str(error)) from error
            self._stamp = stamp
        driver = self._profile.faults.driver
        if driver == "gone":
            raise NvmlError("Driver Not Loaded")
        if driver == "slow":
            await asyncio.sleep(_SLOW_S)
            raise NvmlError("no answer of the driver")
        return self._profile

    def _all_cards(self, profile: Profile) -> list[CardFacts]:
        cards: list[CardFacts] = []
        for kind in profile.cards:
            for position in range(kind.count):
                cards.append(self._card(kind, position, len(cards)))
        return cards

    def _card(self, kind: CardKind, position: int, index: int) -> CardFacts:
        uuid = kind.uuids[position] if position < len(kind.uuids) else made_uuid(self._node_name, index)
        profiles = tuple(map(_mig_profile, kind.mig_profiles, _profile_numbers(kind.mig_profiles)))
        card = CardFacts(
            uuid=uuid,
            index=index,
            name=kind.model,
            memory_bytes=None if kind.memory_mib is None else kind.memory_mib * _MIB,
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            numa=_numa(kind.numa, position),
            minor=index,
            mig_capable=kind.mig or bool(kind.mig_profiles),
            mig_enabled=kind.mig,
            mig_profiles=profiles,
            mig_instances=laid_out(uuid, profiles, kind.mig_layout),
        )
        return self._geometry.seen(card)


def _event(happened: XidFault | EccFault | int, uuids: Mapping[int, str]) -> HealthEvent:
    if isinstance(happened, int):
        return HealthEvent(uuids.get(happened, ""), NO_EVENTS)
    uuid = uuids.get(happened.index, "")
    if isinstance(happened, EccFault):
        return HealthEvent(uuid, ECC_DOUBLE_BIT)
    return HealthEvent(uuid, CRITICAL_ERROR, happened.xid)


def _load(card: CardFacts, kind: CardKind) -> CardLoad:
    return CardLoad(
        uuid=card.uuid,
        index=card.index,
        name=card.name,
        memory_used_bytes=None if kind.memory_mib is None else kind.used_mib * _MIB,
        gpu_percent=kind.gpu_percent,
        memory_controller_percent=0,
    )


def made_uuid(node_name: str, index: int) -> str:
    """A card's id: different for every node and card, the same at every start."""
    return f"GPU-{uuid.uuid5(_UUID_NAMESPACE, f'{node_name}/{index}')}"


def _numa(numa: int | Sequence[int], position: int) -> int:
    if isinstance(numa, int):
        return numa
    return numa[position] if position < len(numa) else -1


def _profile_numbers(profiles: Sequence[MigProfile]) -> list[int]:
    """NVML's numbers: one for the plain profile of each size, others for its variants."""
    numbers: list[int] = []
    for profile in profiles:
        plain = PLAIN_NUMBERS.get(profile.slices, FIRST_VARIANT_NUMBER + len(numbers))
        taken = plain in numbers or profile.media
        numbers.append(FIRST_VARIANT_NUMBER + len(numbers) if taken else plain)
    return numbers


def _mig_profile(profile: MigProfile, number: int) -> MigProfileOffer:
    return MigProfileOffer(
        slices=profile.slices,
        memory_mib=profile.memory_mib,
        slice_count=profile.slice_count,
        multiprocessors=profile.multiprocessors,
        placements=tuple(MigPlacement(start, size) for start, size in profile.placements),
        number=number,
        media=profile.media,
    )


def _pair(first: CardFacts, second: CardFacts, one: CardKind, other: CardKind) -> PairFacts:
    links = min(one.nvlink, other.nvlink)
    level = "node" if first.numa == second.numa else "system"
    switch = min(one.nvswitch_links, other.nvswitch_links)
    return PairFacts(first.uuid, second.uuid, level, links, links, switch)


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)
