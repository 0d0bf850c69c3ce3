"""Texts of device annotations: every form that a HAMi release from 2.4.1 to 2.10 wrote, read strictly.

Allocation lists (spec/scheduler 2.3), node registers (2.5), pair scores (2.2) and MIG reservations (2.4). What cannot
be read raises DecodeError with the field and its value, so that callers fail closed for one node or pod (design 4).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hami.core.errors import DecodeError
from hami.core.model import (
    INT32_MAX,
    ContainerShares,
    Device,
    DeviceShare,
    MigPlacement,
    MigProfile,
    VendorShares,
)

_DIGITS: Final = re.compile(r"[0-9]{1,10}", re.ASCII)
_ID: Final = re.compile(r"[^\s,:;]+")
_MIG_SUFFIX: Final = re.compile(r"\[[^\]]*\]$")
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
_SHARE_FIELDS: Final = 4
_CSV_SEPARATORS: Final = str.maketrans(",:", "  ")
_GO_ESCAPES: Final = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def parse_bool(text: str) -> bool | None:
    """A boolean as upstream's language reads it (`1,t,T,true,TRUE,True` and their opposites); None for other texts."""
    return _BOOLS.get(text)


def physical_id(device_id: str) -> str:
    """The card of an id: HAMi 2.5 to 2.9 wrote MIG slices as `GPU-…[template-slot]` (spec/scheduler 2.4)."""
    return _MIG_SUFFIX.sub("", device_id) if device_id.endswith("]") else device_id


# --- allocation lists ------------------------------------------------------------------------------------------------


def encode_shares(shares: VendorShares) -> str:
    """One segment per container, init containers first; a container without devices is an empty segment."""
    return "".join(_encode_container(container) for container in shares)


def decode_shares(text: str, subject: str) -> VendorShares:
    """Shares per segment of an allocation list.

    Entries with an empty id (2.4.1 wrote `,,0,0:` for containers without devices) stand for no device; fields beyond
    the fourth are ignored. Ids keep the slice suffix of 2.5 to 2.9 (see `physical_id`). Raises DecodeError.
    """
    segments = text.split(";")
    if segments[-1] == "":
        segments.pop()
    return tuple(_decode_container(segment, subject) for segment in segments)


def _encode_container(container: ContainerShares) -> str:
    entries = (f"{share.device_id},{share.type},{share.memory_mib},{share.core_percent}:" for share in container)
    return "".join(entries) + ";"


def _decode_container(segment: str, subject: str) -> ContainerShares:
    if not segment:
        return ()
    shares = (_decode_share(piece, subject) for piece in segment.split(":") if piece)
    return tuple(share for share in shares if share is not None)


def _decode_share(piece: str, subject: str) -> DeviceShare | None:
    fields = piece.split(",")
    if len(fields) < _SHARE_FIELDS:
        problem = "pod annotation format error, missing fields, do not use nodeName in task spec"
        raise DecodeError(subject, f"{problem} (entry '{piece}' has {len(fields)} of {_SHARE_FIELDS} fields)")
    device_id, device_type, memory, cores = fields[:_SHARE_FIELDS]
    memory_mib = _number(memory, "memory", subject)
    core_percent = _number(cores, "cores", subject)
    if not device_id:
        return None
    return DeviceShare(_checked_id(device_id, "device id", subject), device_type, memory_mib, core_percent)


def _number(text: str, field: str, subject: str) -> int:
    if _DIGITS.fullmatch(text) is None or int(text) > INT32_MAX:
        raise DecodeError(subject, f"{field} '{text}' is not a whole number between 0 and {INT32_MAX}")
    return int(text)


def _checked_id(text: str, field: str, subject: str) -> str:
    if _ID.fullmatch(text) is None:
        raise DecodeError(subject, f"{field} '{text}' is empty or has a blank, comma, colon or semicolon in it")
    return text


# --- node registers --------------------------------------------------------------------------------------------------


class RegisterForm(enum.StrEnum):
    """Forms of the register annotation, by release: csv7 (2.4.1), csv9 (2.5 to 2.7), json (2.8 on)."""

    JSON = "json"
    CSV9 = "csv9"
    CSV7 = "csv7"


class _WirePlacement(msgspec.Struct):
    start: int = 0
    size: int = 0


class _WireProfile(msgspec.Struct):
    name: str = ""
    memory_mib: int = msgspec.field(name="memoryMB", default=0)
    core_percent: int = msgspec.field(name="core", default=0)
    slice_count: int = msgspec.field(name="sliceCount", default=0)
    placements: list[_WirePlacement] | None = None


class _WireDevice(msgspec.Struct, omit_defaults=True):
    """Keys and their order are upstream's; zero values are left out (contract 3.2)."""

    id: str = ""
    index: int = 0
    slots: int = msgspec.field(name="count", default=0)
    memory_mib: int = msgspec.field(name="devmem", default=0)
    core_percent: int = msgspec.field(name="devcore", default=0)
    type: str = ""
    numa: int = 0
    mode: str = ""
    mig_profiles: list[_WireProfile] | None = msgspec.field(name="migProfiles", default=None)
    healthy: bool = msgspec.field(name="health", default=False)


_register_decoder = msgspec.json.Decoder(list[_WireDevice])


def encode_register(devices: Sequence[Device], form: RegisterForm) -> str:
    """The register annotation. csv7 has no index and mode; the text forms have no MIG profiles.

    Commas and colons in a card's type become blanks in the text forms, which could not carry them.
    """
    if form is RegisterForm.JSON:
        return _go_json([_to_wire(device) for device in devices])
    return "".join(_csv_record(device, form) for device in devices)


def decode_register(text: str, vendor: str, subject: str) -> tuple[Device, ...]:
    """Cards of a register annotation in registration order; the first character tells JSON from text.

    A missing `health` is false. Of several cards with one id the first counts. Raises DecodeError with the field and
    its value for numbers that are negative, above int32 or no numbers, and for ids that would break allocation lists.
    """
    decode = _decode_json if text.lstrip().startswith("[") else _decode_csv
    devices = decode(text, vendor, subject)
    unique: dict[str, Device] = {}
    for device in devices:
        unique.setdefault(device.id, device)
    return tuple(unique.values())


def _csv_record(device: Device, form: RegisterForm) -> str:
    card_type = device.type.translate(_CSV_SEPARATORS)
    fields = [device.id, device.slots, device.memory_mib, device.core_percent, card_type, device.numa]
    fields.append("true" if device.healthy else "false")
    if form is RegisterForm.CSV9:
        fields += [device.index, device.mode]
    return ",".join(map(str, fields)) + ":"


def _to_wire(device: Device) -> _WireDevice:
    profiles = [
        _WireProfile(
            profile.name,
            profile.memory_mib,
            profile.core_percent,
            profile.slice_count,
            [_WirePlacement(placement.start, placement.size) for placement in profile.placements],
        )
        for profile in device.mig_profiles
    ]
    return _WireDevice(
        id=device.id,
        index=device.index,
        slots=device.slots,
        memory_mib=device.memory_mib,
        core_percent=device.core_percent,
        type=device.type,
        numa=device.numa,
        mode=device.mode,
        mig_profiles=profiles or None,
        healthy=device.healthy,
    )


def _decode_json(text: str, vendor: str, subject: str) -> list[Device]:
    try:
        records = _register_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise DecodeError(subject, f"not a JSON register: {error}") from error
    return [_from_wire(record, vendor, subject) for record in records]


def _from_wire(record: _WireDevice, vendor: str, subject: str) -> Device:
    card_id = _checked_id(record.id, "id", subject)
    return Device(
        id=card_id,
        index=_in_range(record.index, f"index of {card_id}", subject),
        slots=_in_range(record.slots, f"count of {card_id}", subject),
        memory_mib=_in_range(record.memory_mib, f"devmem of {card_id}", subject),
        core_percent=_in_range(record.core_percent, f"devcore of {card_id}", subject),
        type=record.type,
        numa=_in_range(record.numa, f"numa of {card_id}", subject, lowest=-1),
        healthy=record.healthy,
        vendor=vendor,
        mode=record.mode,
        mig_profiles=tuple(_profile(profile, card_id, subject) for profile in record.mig_profiles or ()),
    )


def _profile(profile: _WireProfile, card_id: str, subject: str) -> MigProfile:
    where = f"of MIG profile '{profile.name}' of {card_id}"
    placements = tuple(
        MigPlacement(
            _in_range(placement.start, f"start {where}", subject),
            _in_range(placement.size, f"size {where}", subject, lowest=1),
        )
        for placement in profile.placements or ()
    )
    return MigProfile(
        name=profile.name,
        memory_mib=_in_range(profile.memory_mib, f"memoryMB {where}", subject),
        core_percent=_in_range(profile.core_percent, f"core {where}", subject),
        slice_count=_in_range(profile.slice_count, f"sliceCount {where}", subject),
        placements=placements,
    )


def _in_range(value: int, field: str, subject: str, lowest: int = 0) -> int:
    if not lowest <= value <= INT32_MAX:
        raise DecodeError(subject, f"{field} is {value}, allowed are {lowest} to {INT32_MAX}")
    return value


def _decode_csv(text: str, vendor: str, subject: str) -> list[Device]:
    if ":" not in text:
        raise DecodeError(subject, f"'{text[:80]}' is neither a JSON register nor a text register")
    return [_csv_device(record, vendor, subject) for record in text.split(":") if record.strip()]


def _csv_device(record: str, vendor: str, subject: str) -> Device:
    fields = record.strip().split(",")
    if len(fields) not in (7, 9):
        raise DecodeError(subject, f"record '{record}' has {len(fields)} fields, allowed are 7 and 9")
    card_id, slots, memory, cores, card_type, numa, health = fields[:7]
    index, mode = fields[7:] if len(fields) == 9 else ("0", "hami-core")
    healthy = parse_bool(health)
    if healthy is None:
        raise DecodeError(subject, f"health of {card_id} is '{health}', allowed are true and false")
    return Device(
        id=_checked_id(card_id, "id", subject),
        index=_number(index, f"index of {card_id}", subject),
        slots=_number(slots, f"count of {card_id}", subject),
        memory_mib=_number(memory, f"memory of {card_id}", subject),
        core_percent=_number(cores, f"cores of {card_id}", subject),
        type=card_type,
        numa=-1 if numa == "-1" else _number(numa, f"numa of {card_id}", subject),
        healthy=healthy,
        vendor=vendor,
        mode=mode,
    )


# --- pair scores -----------------------------------------------------------------------------------------------------


class _WireScore(msgspec.Struct):
    uuid: str
    score: dict[str, int] = {}


_score_decoder = msgspec.json.Decoder(list[_WireScore])


def encode_pair_scores(scores: Mapping[str, Mapping[str, int]]) -> str:
    """The score annotation: link quality of each card to each other (spec/scheduler 2.2)."""
    return _go_json([_WireScore(card, dict(others)) for card, others in scores.items()])


def decode_pair_scores(text: str, subject: str) -> dict[str, dict[str, int]]:
    """Card id -> other card id -> score. Raises DecodeError."""
    try:
        records = _score_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise DecodeError(subject, f"not a pair score list: {error}") from error
    return {record.uuid: record.score for record in records}


# --- MIG reservations ------------------------------------------------------------------------------------------------


class MigAllocation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One reserved MIG slice of one container. The last three come from the plugin, all or none (spec/node 5.3)."""

    container_index: int = msgspec.field(name="containerIndex")
    device_index: int = msgspec.field(name="deviceIndex")
    gpu_uuid: str = msgspec.field(name="gpuUUID")
    profile: str
    placement: MigPlacement
    mig_uuid: str | None = msgspec.field(name="migUUID", default=None)
    gpu_instance_id: int | None = msgspec.field(name="gpuInstanceID", default=None)
    compute_instance_id: int | None = msgspec.field(name="computeInstanceID", default=None)


_mig_decoder = msgspec.json.Decoder(tuple[MigAllocation, ...])


def encode_mig_allocations(allocations: Sequence[MigAllocation]) -> str:
    """The MIG reservation annotation (spec/scheduler 2.4)."""
    return _go_json(list(allocations))


def decode_mig_allocations(text: str, subject: str) -> tuple[MigAllocation, ...]:
    """Reservations in order. Raises DecodeError for missing fields, size 0, a partial identity, a repeated position."""
    try:
        allocations = _mig_decoder.decode(text)
    except msgspec.DecodeError as error:
        raise DecodeError(subject, f"not a MIG reservation list: {error}") from error
    seen: set[tuple[int, int]] = set()
    for allocation in allocations:
        problem = _mig_problem(allocation, seen)
        if problem:
            position = f"container {allocation.container_index}, device {allocation.device_index}"
            raise DecodeError(subject, f"MIG reservation of {position}: {problem}")
        seen.add((allocation.container_index, allocation.device_index))
    return allocations


def _mig_problem(allocation: MigAllocation, seen: set[tuple[int, int]]) -> str:
    numbers = (allocation.container_index, allocation.device_index, allocation.placement.start)
    identity = (allocation.mig_uuid, allocation.gpu_instance_id, allocation.compute_instance_id)
    if not all(0 <= number <= INT32_MAX for number in numbers):
        return "a number is negative or above int32"
    if not 1 <= allocation.placement.size <= INT32_MAX:
        return f"placement size is {allocation.placement.size}, must be at least 1"
    if not allocation.gpu_uuid or not allocation.profile:
        return "gpuUUID or profile is empty"
    if any(part is None for part in identity) and any(part is not None for part in identity):
        return "migUUID, gpuInstanceID and computeInstanceID must be set together"
    return "the position appears twice" if (allocation.container_index, allocation.device_index) in seen else ""


def _go_json(value: object) -> str:
    """Compact JSON with the three escapes that upstream's encoder adds, so that texts compare byte by byte."""
    return msgspec.json.encode(value).decode().translate(_GO_ESCAPES)
