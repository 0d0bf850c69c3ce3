"""What one vendor's device plugin and kubelet say of its cards on one node (spec/scheduler 2.5, 2.6)."""

from __future__ import annotations

import hashlib
from typing import Final

from hami.core import units
from hami.core.device_type import DeviceType
from hami.core.errors import DecodeError
from hami.core.model import Device
from hami.core.objects import Node
from hami.placement.handshake import HandshakeKind, read_handshake

_DIGEST_BYTES: Final = 16


class VendorCards:
    """One vendor on one node: decoded register, allocatable count, signs of life (monotonic seconds)."""

    __slots__ = (
        "alive_at_s",
        "allocatable",
        "devices",
        "handshake",
        "kind",
        "pair_scores",
        "problem",
        "renewed",
        "text_digests",
    )

    def __init__(self) -> None:
        self.text_digests = (b"", b"")
        """Of the register and the score annotation, to see that they changed (the texts are 5 KB a node); empty for
        none."""
        self.devices: tuple[Device, ...] = ()
        self.pair_scores: dict[str, dict[str, int]] = {}
        self.problem = ""
        self.allocatable: int | None = None
        self.handshake = ""
        self.kind = HandshakeKind.ABSENT
        self.alive_at_s = 0.0
        self.renewed = False
        """We saw a stamp of the plugin take the place of another one, so that its silence says something: a stamp that
        an older plugin left behind is never renewed (`--heartbeat on-change`)."""

    @property
    def is_registered(self) -> bool:
        """There is a register annotation."""
        return bool(self.text_digests[0])

    @property
    def silence_counts(self) -> bool:
        """Whether silence after a `Reported` stamp takes the cards out: not while kubelet offers them and the stamp may
        be one that nobody renews any more."""
        return self.renewed or self.allocatable is None

    def take(self, vendor: DeviceType, node: Node, now_s: float, now_unix_s: float) -> None:
        """The node as the API server has it."""
        register = node.annotations.get(vendor.register_key, "")
        scores = node.annotations.get(vendor.score_key, "") if vendor.score_key else ""
        digests = (_digest(register), _digest(scores))
        if digests != self.text_digests:
            self.text_digests = digests
            self._decode(vendor, node.name, register, scores)
        self.allocatable = allocatable(node, vendor.count_resource)
        text = node.annotations.get(vendor.handshake_key, "")
        if text != self.handshake:
            self._take_handshake(text, now_s, now_unix_s)

    def _take_handshake(self, text: str, now_s: float, now_unix_s: float) -> None:
        handshake = read_handshake(text, now_unix_s)
        first = not self.handshake
        self.renewed = handshake.kind is not HandshakeKind.ABSENT and (
            self.renewed or (not first and handshake.kind is HandshakeKind.REPORTED)
        )
        asked = handshake.kind is HandshakeKind.REQUESTING
        self.alive_at_s = now_s - handshake.age_s if first or asked else now_s
        self.handshake, self.kind = text, handshake.kind

    def _decode(self, vendor: DeviceType, node: str, register: str, scores: str) -> None:
        self.devices, self.pair_scores, self.problem = (), {}, ""
        try:
            if register:
                decoded = vendor.decode_register(register, f"node {node} annotation {vendor.register_key}")
                first_of: dict[str, Device] = {}
                for device in decoded:
                    first_of.setdefault(device.id, device)
                self.devices = tuple(first_of.values())
        except DecodeError as error:
            self.problem = str(error)
        try:
            if scores:
                self.pair_scores = vendor.decode_pair_scores(scores, f"node {node} annotation {vendor.score_key}")
        except DecodeError:
            # Link quality only ranks cards: unreadable scores count 0, like missing ones, and keep no pod away.
            self.pair_scores = {}


def allocatable(node: Node, resource: str) -> int | None:
    """Allocatable count; None if kubelet says nothing about the resource."""
    quantity = (node.status.allocatable or {}).get(resource)
    if quantity is None:
        return None
    try:
        return units.parse_whole(quantity)
    except ValueError:
        return None


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest() if text else b""
