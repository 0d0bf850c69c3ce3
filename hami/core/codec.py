"""Texts of device annotations: every form that a HAMi release from 2.4.1 to 2.10 wrote, read strictly.

Allocation lists (spec/scheduler 2.3), pair scores (2.2) and MIG reservations (2.4) live here, node registers (2.5) in
`core.register`. What cannot be read raises DecodeError with the field and its value, so that callers fail closed for
one node or pod (design 4).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from hami.core.errors import DecodeError
from hami.core.model import INT32_MAX, ContainerShares, DeviceShare, MigPlacement, VendorShares
from hami.core.register import RegisterForm, decode_register, encode_register
from hami.core.wire_text import checked_id, decoded_json, go_json, parse_bool, whole_number

__all__ = [
    "MigAllocation",
    "RegisterForm",
    "decode_mig_allocations",
    "decode_pair_scores",
    "decode_register",
    "decode_shares",
    "encode_mig_allocations",
    "encode_pair_scores",
    "encode_register",
    "encode_shares",
    "parse_bool",
    "physical_id",
]

_MIG_SUFFIX: Final = re.compile(r"\[[^\]]*\]$")
_SHARE_FIELDS: Final = 4


def physical_id(device_id: str) -> str:
    """The card of an id: HAMi 2.5 to 2.9 wrote MIG slices as `GPU-…[template-slot]` (spec/scheduler 2.4)."""
    return _MIG_SUFFIX.sub("", device_id) if device_id.endswith("]") else device_id


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
    return tuple([_decode_container(segment, subject) for segment in segments])


def _encode_container(container: ContainerShares) -> str:
    entries = (f"{share.device_id},{share.type},{share.memory_mib},{share.core_percent}:" for share in container)
    return "".join(entries) + ";"


def _decode_container(segment: str, subject: str) -> ContainerShares:
    if not segment:
        return ()
    shares = [_decode_share(piece, subject) for piece in segment.split(":") if piece]
    return tuple([share for share in shares if share is not None])


def _decode_share(piece: str, subject: str) -> DeviceShare | None:
    fields = piece.split(",")
    if len(fields) < _SHARE_FIELDS:
        problem = "pod annotation format error, missing fields, do not use nodeName in task spec"
        raise DecodeError(subject, f"{problem} (entry '{piece}' has {len(fields)} of {_SHARE_FIELDS} fields)")
    device_id, device_type, memory, cores = fields[:_SHARE_FIELDS]
    memory_mib = whole_number(memory, "memory", subject)
    core_percent = whole_number(cores, "cores", subject)
    if not device_id:
        return None
    return DeviceShare(checked_id(device_id, "device id", subject), device_type, memory_mib, core_percent)


class _WireScore(msgspec.Struct):
    uuid: str
    score: dict[str, int] = {}


_score_decoder = msgspec.json.Decoder(list[_WireScore])


def encode_pair_scores(scores: Mapping[str, Mapping[str, int]]) -> str:
    """The score annotation: link quality of each card to each other (spec/scheduler 2.2)."""
    return go_json([_WireScore(card, dict(others)) for card, others in scores.items()])


def decode_pair_scores(text: str, subject: str) -> dict[str, dict[str, int]]:
    """Card id -> other card id -> score. Raises DecodeError."""
    records = decoded_json(_score_decoder, text, "pair score list", subject)
    # Each id stands in every record: one text for all of them, the card's own.
    shared = sys.intern
    return {shared(record.uuid): {shared(card): score for card, score in record.score.items()} for record in records}


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
    return go_json(list(allocations))


def decode_mig_allocations(text: str, subject: str) -> tuple[MigAllocation, ...]:
    """Reservations in order. Raises DecodeError for missing fields, size 0, a partial identity, a repeated position."""
    allocations = decoded_json(_mig_decoder, text, "MIG reservation list", subject)
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
