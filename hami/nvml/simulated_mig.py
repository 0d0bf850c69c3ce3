"""MIG instances of simulated cards: what exists, and what the driver would refuse.

Kept in a file, because a driver's instances outlive the process that made them; written so that a process killed at
any moment leaves the state before or after a step.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from hami.core.errors import NvmlError
from hami.core.model import MigPlacement, MigProfileOffer
from hami.nvml.probe import CardFacts, MigComputeFacts, MigInstanceFacts

PLAIN_NUMBERS: Final = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
"""The driver's number of the plain profile of each size."""
FIRST_VARIANT_NUMBER: Final = 7

_UUID_NAMESPACE: Final = uuid.UUID("0c0b3b5e-62f4-54a4-9a1a-8f0f5a3c4a11")


class _CardState(msgspec.Struct, frozen=True):
    """What one card's mode was switched to, and what was made there."""

    enabled: bool
    instances: tuple[MigInstanceFacts, ...] = ()


_State = dict[str, _CardState]


def mig_uuid(card: str, instance: int, compute: int) -> str:
    """A MIG device's id: the same whenever the same instances are made again, as the driver has it."""
    return f"MIG-{uuid.uuid5(_UUID_NAMESPACE, f'{card}/{instance}/{compute}')}"


class SimulatedGeometry:
    """The instances of one machine's cards. `file` None keeps them in memory."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._memory: _State = {}

    def seen(self, card: CardFacts) -> CardFacts:
        """The card with its mode and instances as they are now."""
        state = self._load().get(card.uuid) or _CardState(card.mig_enabled, card.mig_instances)
        instances = state.instances if state.enabled else ()
        return msgspec.structs.replace(card, mig_enabled=state.enabled, mig_instances=instances)

    def set_mode(self, card: CardFacts, *, enabled: bool, in_use: Collection[str]) -> None:
        """Raises NvmlError for a card without MIG, one in use, and one that still has instances."""
        seen = self.seen(card)
        if not card.mig_profiles:
            raise NvmlError(f"MIG mode of {card.uuid}: Not Supported")
        if seen.mig_enabled == enabled:
            return
        if card.uuid in in_use:
            raise NvmlError(f"MIG mode of {card.uuid} stays {'off' if enabled else 'on'}: In use by another client")
        if seen.mig_instances:
            raise NvmlError(f"MIG mode of {card.uuid} stays on: it has instances")
        self._save(card.uuid, _CardState(enabled))

    def create_gpu_instance(self, card: CardFacts, profile: int, placement: MigPlacement) -> int:
        """Its id. Raises NvmlError where the profile or the place is not offered, or not free."""
        seen = self.seen(card)
        facts = next((each for each in card.mig_profiles if each.number == profile), None)
        if not seen.mig_enabled or facts is None:
            raise NvmlError(f"MIG instance on {card.uuid}: Not Supported")
        if placement not in facts.placements:
            raise NvmlError(f"MIG instance on {card.uuid} at {placement.start}: Invalid Argument")
        if any(placement.overlaps(each.placement) for each in seen.mig_instances):
            raise NvmlError(f"MIG instance on {card.uuid} at {placement.start}: Insufficient Resources")
        number = _instance_id(placement)
        made = MigInstanceFacts(number, profile, facts.slices, facts.memory_mib, placement, facts.media)
        self._put(seen, (*seen.mig_instances, made))
        return number

    def create_compute_instance(self, card: CardFacts, instance: int) -> MigInstanceFacts:
        """A compute instance that fills the GPU instance. Raises NvmlError."""
        seen, old = self._find(card, instance)
        if old.compute:
            raise NvmlError(f"compute instance of {instance} on {card.uuid}: Insufficient Resources")
        compute = MigComputeFacts(0, mig_uuid(card.uuid, instance, 0), old.slices)
        self._put(seen, [_with_compute(each, compute) if each is old else each for each in seen.mig_instances])
        return self._find(card, instance)[1]

    def destroy_compute_instances(self, card: CardFacts, instance: int, *, in_use: Collection[str]) -> None:
        """Raises NvmlError where one is in use."""
        seen, old = self._find(card, instance)
        for each in old.compute:
            if each.uuid in in_use:
                raise NvmlError(f"compute instance {each.uuid}: In use by another client")
        bare = msgspec.structs.replace(old, compute=())
        self._put(seen, [bare if each is old else each for each in seen.mig_instances])

    def destroy_gpu_instance(self, card: CardFacts, instance: int) -> None:
        """Raises NvmlError where it still has a compute instance."""
        seen, old = self._find(card, instance)
        if old.compute:
            raise NvmlError(f"GPU instance {instance} of {card.uuid}: In use by another client")
        self._put(seen, [each for each in seen.mig_instances if each is not old])

    def _find(self, card: CardFacts, instance: int) -> tuple[CardFacts, MigInstanceFacts]:
        seen = self.seen(card)
        found = next((each for each in seen.mig_instances if each.id == instance), None)
        if found is None:
            raise NvmlError(f"GPU instance {instance} of {card.uuid}: Not Found")
        return seen, found

    def _put(self, card: CardFacts, instances: Collection[MigInstanceFacts]) -> None:
        ordered = sorted(instances, key=lambda each: each.id)
        self._save(card.uuid, _CardState(card.mig_enabled, tuple(_indexed(ordered))))

    def _load(self) -> _State:
        if self._file is None:
            return self._memory
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=_State)
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise NvmlError(f"simulated MIG state {self._file} cannot be read: {error}") from error

    def _save(self, card: str, state: _CardState) -> None:
        states = {**self._load(), card: state}
        self._memory = states
        if self._file is None:
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._file.parent, prefix=".mig-", delete=False) as file:
            file.write(msgspec.json.encode(states))
        Path(file.name).replace(self._file)


def laid_out(
    card: str, profiles: Sequence[MigProfileOffer], layout: Iterable[tuple[int, int]]
) -> tuple[MigInstanceFacts, ...]:
    """Instances by slices and start, as a profile's author lists them; those that no profile offers are left out."""
    found: list[MigInstanceFacts] = []
    for slices, start in layout:
        offers = ((each, place) for each in profiles if each.slices == slices for place in each.placements)
        for profile, place in offers:
            if place.start == start:
                number = _instance_id(place)
                compute = MigComputeFacts(0, mig_uuid(card, number, 0), slices)
                made = MigInstanceFacts(number, profile.number, slices, profile.memory_mib, place, profile.media)
                found.append(_with_compute(made, compute))
                break
    return tuple(_indexed(found))


def _instance_id(placement: MigPlacement) -> int:
    """As a driver numbers them: by size and place, so that an instance made again has its old id."""
    first = {8: 0, 4: 1, 2: 3, 1: 7}.get(placement.size, 15)
    step = placement.size if placement.size in (4, 2, 1) else 1
    return first + placement.start // step


def _with_compute(instance: MigInstanceFacts, compute: MigComputeFacts) -> MigInstanceFacts:
    return msgspec.structs.replace(instance, compute=(*instance.compute, compute))


def _indexed(instances: Collection[MigInstanceFacts]) -> list[MigInstanceFacts]:
    """With the positions of the MIG devices on the card, in order."""
    position = 0
    found = []
    for instance in instances:
        compute = []
        for each in instance.compute:
            compute.append(msgspec.structs.replace(each, index=position))
            position += 1
        found.append(msgspec.structs.replace(instance, compute=tuple(compute)))
    return found
