"""Every check of spec/scheduler 4.6 for every card, with what is required and what there is.

For people: `cards` decides. The first check that fails here is the one that `cards` counts (a test compares them).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from hami.core.device_type import CardPick, CardReport, CardReports, Check, ShareCheck
from hami.core.model import Device, DeviceRequest, DeviceShare, NodeState, Policies, Selectors, Use
from hami.core.policy_words import MUTEX
from hami.core.reasons import Reason
from hami.vendors.nvidia.cards import (
    FULL_CORES,
    cores_of,
    id_matches,
    memory_of,
    pick_cards,
    slices_possible,
    type_matches,
    unknown_slices,
)
from hami.vendors.nvidia.mig import choose_slice
from hami.vendors.nvidia.names import MODE_MIG, WORD


class _Case(msgspec.Struct, frozen=True):
    """One request on one node."""

    state: NodeState
    request: DeviceRequest
    selectors: Selectors
    mutex: bool
    quota: ShareCheck | None


def explain_cards(
    state: NodeState, request: DeviceRequest, selectors: Selectors, policies: Policies, quota: ShareCheck | None
) -> CardReports:
    """A report for each NVIDIA card of the node, and what the cards must do together."""
    case = _Case(state, request, selectors, MUTEX in policies.device, quota)
    cards = tuple(
        CardReport(device, use, tuple(_checks(case, device, use)))
        for device, use in zip(state.devices, state.uses, strict=True)
        if device.vendor == WORD
    )
    candidates = sum(device.serves(WORD) for device in state.devices)
    return CardReports(cards, tuple(_together(case, policies, candidates)))


def _checks(case: _Case, device: Device, use: Use) -> Iterator[Check]:
    if not device.serves(WORD):
        # Left out before any check: it counts for no code but the number of cards (spec/scheduler 4.3).
        yield Check(Reason.NODE_INSUFFICIENT_DEVICE, False, f"a type with {WORD} in it", f"type {device.type}")
        return
    yield from _usable(case, device, use)
    yield from _identity(case, device, use)
    memory_mib, cores = memory_of(device, case.request), cores_of(case.request)
    if case.quota is not None:
        share = _charged(case, device, memory_mib, cores)
        fits = case.quota([share])
        amount = f"{share.memory_mib} MiB, {share.core_percent} % cores of the quota"
        yield Check(Reason.RESOURCE_QUOTA_NOT_FIT, fits, amount, "enough" if fits else "less")
    yield from _amount(device, use, memory_mib, cores)
    if device.mode == MODE_MIG:
        yield _geometry(case, device, memory_mib)


def _usable(case: _Case, device: Device, use: Use) -> Iterator[Check]:
    health = "healthy" if device.healthy else "unhealthy"
    if device.healthy and unknown_slices(case.state, device, use):
        health = "holds pods of an older release whose MIG slices are not recorded"
    yield Check(Reason.CARD_NOT_HEALTH, health == "healthy", "healthy", health)
    cordoned = device.id in case.state.cordoned
    yield Check(Reason.CARD_CORDONED, not cordoned, "not cordoned", "cordoned" if cordoned else "not cordoned")
    wanted = case.selectors
    if wanted.use_types or wanted.nouse_types:
        words = " and ".join(_lists("type", wanted.use_types, wanted.nouse_types))
        passed = type_matches(device, msgspec.structs.replace(wanted, modes=""))
        yield Check(Reason.CARD_TYPE_MISMATCH, passed, words, device.type)
    if wanted.modes:
        passed = type_matches(device, Selectors(modes=wanted.modes))
        yield Check(Reason.CARD_TYPE_MISMATCH, passed, f"mode in {wanted.modes}", f"mode {device.mode}")


def _identity(case: _Case, device: Device, use: Use) -> Iterator[Check]:
    wanted = case.selectors
    if wanted.use_ids or wanted.nouse_ids:
        words = " and ".join(_lists("id", wanted.use_ids, wanted.nouse_ids))
        yield Check(Reason.CARD_UUID_MISMATCH, id_matches(device, wanted), words, device.id)
    free = device.slots - use.slots
    yield Check(Reason.CARD_TIME_SLICING_EXHAUSTED, free > 0, "1 share", f"{max(free, 0)} of {device.slots} shares")
    if case.mutex:
        yield Check(Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, use.slots <= 0, "an idle card (mutex)", _tasks(use))


def _amount(device: Device, use: Use, memory_mib: int, cores: int) -> Iterator[Check]:
    free = device.memory_mib - use.memory_mib
    words = f"{free} of {device.memory_mib} MiB"
    yield Check(Reason.CARD_INSUFFICIENT_MEMORY, free >= memory_mib, f"{memory_mib} MiB", words)
    free = device.core_percent - use.core_percent
    words = f"{free} of {device.core_percent} % cores"
    yield Check(Reason.CARD_INSUFFICIENT_CORE, free >= cores, f"{cores} % cores", words)
    if device.core_percent == FULL_CORES and cores == FULL_CORES:
        idle = use.slots <= 0
        yield Check(Reason.EXCLUSIVE_DEVICE_ALLOCATE_CONFLICT, idle, "an idle card (100 % cores)", _tasks(use))
    if device.core_percent != 0 and cores == 0:
        room = use.core_percent != device.core_percent
        yield Check(Reason.CARD_COMPUTE_UNITS_EXHAUSTED, room, "some cores that no task claims", words)


def _geometry(case: _Case, device: Device, memory_mib: int) -> Check:
    taken = case.state.mig_taken.get(device.id, ())
    found = choose_slice(device, memory_mib, taken, percent=not case.request.memory_mib)
    held = ", ".join(f"{place.start}-{place.start + place.size - 1}" for place in taken)
    there = f"{found[0].name} at {found[1].placement.start}" if found else f"none free, taken: {held or 'nothing'}"
    required = f"a MIG slice of at least {memory_mib} MiB"
    return Check(Reason.CARD_MIG_TOPOLOGY_INFEASIBLE, found is not None, required, there)


def _charged(case: _Case, device: Device, memory_mib: int, cores: int) -> DeviceShare:
    """What the card would be charged with: a slice's own memory and cores where it is one."""
    if device.mode == MODE_MIG:
        taken = case.state.mig_taken.get(device.id, ())
        found = choose_slice(device, memory_mib, taken, percent=not case.request.memory_mib)
        if found is not None:
            return DeviceShare(device.id, WORD, found[0].memory_mib, found[0].core_percent)
    return DeviceShare(device.id, WORD, memory_mib, cores)


def _together(case: _Case, policies: Policies, cards: int) -> Iterator[Check]:
    count = case.request.count
    positions = [position for position, device in enumerate(case.state.devices) if device.serves(WORD)]
    enough = count <= cards or slices_possible(case.state, positions, case.selectors)
    yield Check(Reason.NODE_INSUFFICIENT_DEVICE, enough, _different(count), _different(cards))
    if count > 1 and enough:
        most = _most(case, policies)
        where = " of one NUMA node" if case.selectors.numa_bind else ""
        code = Reason.NUMA_NOT_FIT if case.selectors.numa_bind else Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST
        yield Check(code, most >= count, f"{count} cards{where} that pass together", f"{most}")


def _most(case: _Case, policies: Policies) -> int:
    """The most cards, up to the number asked, that the evaluator gives."""
    for count in range(case.request.count, 0, -1):
        fewer = msgspec.structs.replace(case.request, count=count)
        if isinstance(pick_cards(case.state, fewer, case.selectors, policies, case.quota), CardPick):
            return count
    return 0


def _lists(what: str, use: tuple[str, ...], nouse: tuple[str, ...]) -> list[str]:
    words = [f"{what} in {', '.join(use)}"] if use else []
    return words + ([f"{what} not in {', '.join(nouse)}"] if nouse else [])


def _different(cards: int) -> str:
    return "1 card" if cards == 1 else f"{cards} different cards"


def _tasks(use: Use) -> str:
    return "1 task" if use.slots == 1 else f"{use.slots} tasks"
