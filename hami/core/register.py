"""The register annotation: the cards of a node, in every form that a release from 2.4.1 to 2.10 wrote.

Source: spec/scheduler 2.5, spec/node 3.3.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from hami.core.errors import DecodeError
from hami.core.model import INT32_MAX, Device, MigPlacement, MigProfile
from hami.core.wire_text import checked_id, decoded_json, go_json, parse_bool, whole_number

_CSV_SEPARATORS: Final = str.maketrans(",:", "  ")


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
        return go_json([_to_wire(device) for device in devices])
    return "".join(_csv_record(device, form) for device in devices)


def decode_register(text: str, vendor: str, subject: str) -> tuple[Device, ...]:
    """Cards of a register annotation in registration order; the first character tells JSON from text.

    A missing `health` is false. Of several cards with one id the first counts. Raises DecodeError with the field and
    its value for numbers that are negative, above int32 or no numbers, and for ids that would break allocation lists.
    """
    json = text.lstrip().startswith("[") or text.strip() == "null"
    decode = _decode_json if json else _decode_csv
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
    records = decoded_json(_register_decoder, text, "JSON register", subject)
    return [_from_wire(record, vendor, subject) for record in records]


def _from_wire(record: _WireDevice, vendor: str, subject: str) -> Device:
    # Ids stand in scores and allocations, too, and cards of one kind share their type and mode: one text for each.
    card_id = sys.intern(checked_id(record.id, "id", subject))
    return Device(
        id=card_id,
        index=_in_range(record.index, f"index of {card_id}", subject),
        slots=_in_range(record.slots, f"count of {card_id}", subject),
        memory_mib=_in_range(record.memory_mib, f"devmem of {card_id}", subject),
        core_percent=_in_range(record.core_percent, f"devcore of {card_id}", subject),
        type=sys.intern(record.type),
        numa=_in_range(record.numa, f"numa of {card_id}", subject, lowest=-1),
        healthy=record.healthy,
        vendor=vendor,
        mode=sys.intern(record.mode),
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
        id=checked_id(card_id, "id", subject),
        index=whole_number(index, f"index of {card_id}", subject),
        slots=whole_number(slots, f"count of {card_id}", subject),
        memory_mib=whole_number(memory, f"memory of {card_id}", subject),
        core_percent=whole_number(cores, f"cores of {card_id}", subject),
        type=card_type,
        numa=-1 if numa == "-1" else whole_number(numa, f"numa of {card_id}", subject),
        healthy=healthy,
        vendor=vendor,
        mode=mode,
    )
