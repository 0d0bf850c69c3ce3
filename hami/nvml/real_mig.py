"""MIG through pynvml: profiles, instances, making and taking them away. Blocking; run by `hami.nvml.caller`."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import pynvml

from hami.core.errors import NvmlError
from hami.core.model import MigPlacement, MigProfileOffer
from hami.nvml.offered import NOT_OFFERED, offered, words
from hami.nvml.probe import MigComputeFacts, MigInstanceFacts


class _Kind(NamedTuple):
    """A GPU instance profile of NVML: the N of its name, and whether it has media extensions."""

    slices: int
    media: bool = False


_GI_PROFILES: Final = {
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE: _Kind(1),
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE: _Kind(2),
    pynvml.NVML_GPU_INSTANCE_PROFILE_3_SLICE: _Kind(3),
    pynvml.NVML_GPU_INSTANCE_PROFILE_4_SLICE: _Kind(4),
    pynvml.NVML_GPU_INSTANCE_PROFILE_6_SLICE: _Kind(6),
    pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE: _Kind(7),
    pynvml.NVML_GPU_INSTANCE_PROFILE_8_SLICE: _Kind(8),
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV1: _Kind(1, media=True),
    pynvml.NVML_GPU_INSTANCE_PROFILE_2_SLICE_REV1: _Kind(2, media=True),
    pynvml.NVML_GPU_INSTANCE_PROFILE_1_SLICE_REV2: _Kind(1),
}
"""The plain one of each size first: it is the one meant where a name says no more than its size (spec/node 5.2)."""
_CI_PROFILES: Final = {
    1: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_1_SLICE,
    2: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_2_SLICE,
    3: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_3_SLICE,
    4: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_4_SLICE,
    6: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_6_SLICE,
    7: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_7_SLICE,
    8: pynvml.NVML_COMPUTE_INSTANCE_PROFILE_8_SLICE,
}
_UNKNOWN: Final = -1
_SHARED_ENGINES: Final = pynvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED


def is_capable(card: Any) -> bool:
    """Whether the card has a MIG mode."""
    return offered(lambda: bool(pynvml.nvmlDeviceGetMigMode(card)), False)


def is_enabled(card: Any) -> bool:
    """Whether MIG mode is on; False for a card that has no such mode."""
    return offered(lambda: bool(pynvml.nvmlDeviceGetMigMode(card)[0]), False)


def read_profiles(card: Any) -> tuple[MigProfileOffer, ...]:
    """The profiles that the card offers, the plain one of each size first."""
    profiles = (_read_profile(card, number, kind) for number, kind in _GI_PROFILES.items())
    return tuple(profile for profile in profiles if profile is not None)


def read_instances(card: Any, profiles: Sequence[MigProfileOffer]) -> tuple[MigInstanceFacts, ...]:
    """The GPU instances that exist, half made ones too, by id.

    A process that may not administer MIG is not told of instances, but of the devices on them: enough to offer those.
    """
    if not is_enabled(card):
        return ()
    devices = _devices(card)
    try:
        found = [
            _read_instance(instance, profile, devices)
            for profile in profiles
            for instance in _gpu_instances(card, _profile_info(card, profile.number).id)
        ]
    except pynvml.NVMLError_NoPermission:
        found = list(_by_devices(card, profiles))
    return tuple(sorted(found, key=lambda each: each.id))


def device_handles(card: Any) -> Iterator[tuple[int, Any]]:
    """Position and handle of each MIG device of the card; positions may have gaps."""
    for position in range(offered(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)), 0)):
        with contextlib.suppress(*NOT_OFFERED):
            yield position, pynvml.nvmlDeviceGetMigDeviceHandleByIndex(card, position)


def set_mode(uuid: str, *, enabled: bool) -> None:
    """See `DeviceProbe.set_mig_mode`. A mode that only a reset would bring about is taken back."""
    card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    wanted = pynvml.NVML_DEVICE_MIG_ENABLE if enabled else pynvml.NVML_DEVICE_MIG_DISABLE
    before, pending = pynvml.nvmlDeviceGetMigMode(card)
    if before == pending == wanted:
        return
    status = pynvml.nvmlDeviceSetMigMode(card, wanted)
    current, pending = pynvml.nvmlDeviceGetMigMode(card)
    if current == pending == wanted:
        return
    if before != wanted:
        pynvml.nvmlDeviceSetMigMode(card, before)
    why = str(pynvml.NVMLError(status)) if status else "it is pending"
    raise NvmlError(f"MIG mode of {uuid} stays {'off' if enabled else 'on'}: {why}; the card needs a reset")


def create(uuid: str, profile: int, placement: MigPlacement) -> MigInstanceFacts:
    """See `DeviceProbe.create_mig`."""
    card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    facts = _read_profile(card, profile, _GI_PROFILES[profile])
    if facts is None:
        raise NvmlError(f"card {uuid} offers no MIG profile {profile}")
    place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
    number = _profile_info(card, profile).id
    instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(card, number, ctypes.byref(place))
    try:
        compute = _compute_profile(instance, facts.slices)
        if compute is None:
            raise NvmlError(f"no compute instance profile of {facts.slices} slices on {uuid}")
        pynvml.nvmlGpuInstanceCreateComputeInstance(instance, compute.id)
        return _read_instance(instance, facts, _devices(card))
    except (pynvml.NVMLError, NvmlError):
        # What cannot be taken away either is seen half made at the next look; the reason to tell is the first one.
        with contextlib.suppress(pynvml.NVMLError):
            _destroy_instance(instance)
        raise


def destroy(uuid: str, instance_id: int) -> None:
    """See `DeviceProbe.destroy_mig`."""
    card = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    _destroy_instance(pynvml.nvmlDeviceGetGpuInstanceById(card, instance_id))


def _destroy_instance(instance: Any) -> None:
    for compute, _ in _compute_instances(instance):
        pynvml.nvmlComputeInstanceDestroy(compute)
    pynvml.nvmlGpuInstanceDestroy(instance)


def _read_profile(card: Any, number: int, kind: _Kind) -> MigProfileOffer | None:
    info = offered(lambda: _profile_info(card, number), None)
    if info is None:
        return None
    return MigProfileOffer(
        slices=kind.slices,
        memory_mib=int(info.memorySizeMB),
        slice_count=int(info.sliceCount),
        multiprocessors=int(info.multiprocessorCount),
        placements=offered(lambda: _placements(card, info.id), ()),
        number=number,
        media=kind.media,
    )


def _profile_info(card: Any, number: int) -> Any:
    try:
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number)
    except pynvml.NVMLError_FunctionNotFound:
        # Drivers before R510 know the first version only.
        return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(card, number, version=1)


def _compute_profile(instance: Any, slices: int) -> Any | None:
    number = _CI_PROFILES.get(slices)
    if number is None:
        return None
    try:
        return pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, _SHARED_ENGINES)
    except pynvml.NVMLError_FunctionNotFound:
        read = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo
        return offered(lambda: read(instance, number, _SHARED_ENGINES, version=1), None)
    except NOT_OFFERED:
        return None


def _placements(card: Any, profile_id: int) -> tuple[MigPlacement, ...]:
    count = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile_id, None, ctypes.byref(count))
    found = (pynvml.c_nvmlGpuInstancePlacement_t * count.value)()
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(card, profile_id, found, ctypes.byref(count))
    return tuple(MigPlacement(int(item.start), int(item.size)) for item in found[: count.value])


class _Device(NamedTuple):
    uuid: str
    position: int


def _devices(card: Any) -> dict[tuple[int, int], _Device]:
    """The card's MIG devices by GPU instance and compute instance."""
    found = {}
    for position, device in device_handles(card):
        key = (pynvml.nvmlDeviceGetGpuInstanceId(device), pynvml.nvmlDeviceGetComputeInstanceId(device))
        found[key] = _Device(words(partial(pynvml.nvmlDeviceGetUUID, device)), position)
    return found


def _by_devices(card: Any, profiles: Sequence[MigProfileOffer]) -> Iterator[MigInstanceFacts]:
    """Instances as far as their devices tell: where they lie on the card is not known."""
    parts: dict[int, list[MigComputeFacts]] = {}
    sizes: dict[int, tuple[int, int]] = {}
    for position, device in device_handles(card):
        number = int(pynvml.nvmlDeviceGetGpuInstanceId(device))
        facts = pynvml.nvmlDeviceGetAttributes_v2(device)
        sizes[number] = (int(facts.gpuInstanceSliceCount), int(facts.memorySizeMB))
        compute = pynvml.nvmlDeviceGetComputeInstanceId(device)
        uuid = words(partial(pynvml.nvmlDeviceGetUUID, device))
        slices = int(facts.computeInstanceSliceCount)
        parts.setdefault(number, []).append(MigComputeFacts(int(compute), uuid, slices, position))
    for number, (slices, memory_mib) in sizes.items():
        same = (each.number for each in profiles if (each.slices, each.memory_mib) == (slices, memory_mib))
        yield MigInstanceFacts(
            id=number,
            profile=next(same, _UNKNOWN),
            slices=slices,
            memory_mib=memory_mib,
            placement=MigPlacement(0, 0),
            compute=tuple(sorted(parts[number], key=lambda each: each.id)),
        )


def _read_instance(
    instance: Any, profile: MigProfileOffer, devices: dict[tuple[int, int], _Device]
) -> MigInstanceFacts:
    info = pynvml.nvmlGpuInstanceGetInfo(instance)
    compute = []
    for each, slices in _compute_instances(instance):
        number = int(pynvml.nvmlComputeInstanceGetInfo_v2(each).id)
        device = devices.get((int(info.id), number), _Device("", -1))
        compute.append(MigComputeFacts(number, device.uuid, slices, device.position))
    return MigInstanceFacts(
        id=int(info.id),
        profile=profile.number,
        slices=profile.slices,
        memory_mib=profile.memory_mib,
        placement=MigPlacement(int(info.placement.start), int(info.placement.size)),
        media=profile.media,
        compute=tuple(sorted(compute, key=lambda each: each.id)),
    )


def _gpu_instances(card: Any, profile_id: int) -> list[Any]:
    most = offered(lambda: int(pynvml.nvmlDeviceGetMaxMigDeviceCount(card)), 0)
    read = partial(pynvml.nvmlDeviceGetGpuInstances, card, profile_id)
    return _listed(pynvml.c_nvmlGpuInstance_t, most, read)


def _compute_instances(instance: Any) -> list[tuple[Any, int]]:
    """Compute instances of a GPU instance, each with its slices."""
    found: list[tuple[Any, int]] = []
    for slices in _CI_PROFILES:
        info = _compute_profile(instance, slices)
        if info is not None:
            read = partial(pynvml.nvmlGpuInstanceGetComputeInstances, instance, info.id)
            found += [(each, slices) for each in _listed(pynvml.c_nvmlComputeInstance_t, max(_CI_PROFILES), read)]
    return found


def _listed(kind: Any, most: int, read: Callable[[Any, Any], object]) -> list[Any]:
    """Handles that NVML writes into room for `most`; none where the profile is not offered.

    Raises NVMLError_NoPermission.
    """
    room = (kind * most)()
    count = ctypes.c_uint(most)
    try:
        read(room, ctypes.byref(count))
    except pynvml.NVMLError_NoPermission:
        raise
    except NOT_OFFERED:
        return []
    return list(room[: count.value])
