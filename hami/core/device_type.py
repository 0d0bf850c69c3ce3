"""What a vendor implements. The registry (a tuple of vendors, in order of their words) is passed in, never global.

Everything here is pure: objects and texts in, values and reasons out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from hami.core import keys
from hami.core.model import Device, DeviceRequest, DeviceShare, MigPlacement, NodeState, Policies, Selectors, Use
from hami.core.objects import Container
from hami.core.reasons import Reason, Rejection


class Refusal(msgspec.Struct, frozen=True):
    """Bad input. `message` has upstream's words first where upstream has words, then the value and what is allowed."""

    message: str
    code: int = 403


class ContainerChange(msgspec.Struct, frozen=True):
    """What admission changes in one container. Empty fields change nothing."""

    found: bool
    """The container asks for this vendor's devices."""
    limits: tuple[tuple[str, str], ...] = ()
    """Resources to set in limits and requests: name, quantity."""
    env: tuple[tuple[str, str], ...] = ()
    """Variables to set: name, value. One that has the value already is left alone."""
    runtime_class_name: str = ""
    drop_env: tuple[str, ...] = ()
    """Variables to remove, because they would override what the device plugin sets."""
    warnings: tuple[str, ...] = ()
    """Sentences for the pod's author."""


class MigSlice(msgspec.Struct, frozen=True):
    """A MIG profile at a place of its card."""

    profile: str
    placement: MigPlacement


class CardPick(msgspec.Struct, frozen=True):
    """Cards chosen for one request of one container, in order: position in `NodeState.devices`, and the share."""

    cards: tuple[tuple[int, DeviceShare], ...]
    slices: tuple[MigSlice | None, ...] = ()
    """The MIG slice behind each card of `cards`, None for a share; empty if there is no slice at all."""


class QuotaNames(msgspec.Struct, frozen=True):
    """Resources of a vendor that a namespace's quota may limit; an empty name has no limit (spec/contract 3.1)."""

    memory: str = ""
    cores: str = ""
    memory_factor: int = 1
    """MiB per unit of the memory resource."""
    count: str = ""


class NodeLock(msgspec.Struct, frozen=True):
    """A node annotation that a vendor's plugin takes off when it has served a pod (spec/scheduler 2.7 and 9).

    `expiry_s`: the age at which a lock of the vendor's own counts no more. The shared token has rules of its own.
    """

    key: str = keys.NODE_LOCK
    expiry_s: float = 120.0


SHARED_TOKEN: Final = NodeLock()
"""The hand-off token, `hami.io/mutex.lock`, which most vendors' plugins go by."""

ShareCheck = Callable[[Sequence[DeviceShare]], bool]
"""Whether the namespace's quota has room for these shares of the container at hand (spec/scheduler 4.6, check 8)."""


class Check(msgspec.Struct, frozen=True):
    """One check of one card or of a node's cards together: what is needed and what there is, in words."""

    reason: Reason
    passed: bool
    required: str
    available: str


class CardReport(msgspec.Struct, frozen=True):
    """One card and all its checks in the evaluator's order."""

    device: Device
    use: Use
    """What is taken already, earlier containers of the pod included."""
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


class CardReports(msgspec.Struct, frozen=True):
    """The cards of one vendor on one node for one request, in registration order, and what they must do together."""

    cards: tuple[CardReport, ...]
    together: tuple[Check, ...] = ()


class DeviceType(Protocol):
    """One vendor's rules."""

    @property
    def word(self) -> str:
        """Common word: key of `Allocation`, type field of allocation annotations, for example `NVIDIA`."""

    @property
    def count_resource(self) -> str:
        """Extended resource that kubelet counts, for example `nvidia.com/gpu`."""

    @property
    def managed_resources(self) -> tuple[str, ...]:
        """Every resource name of this vendor."""

    @property
    def quota_names(self) -> QuotaNames: ...

    @property
    def register_key(self) -> str: ...

    @property
    def handshake_key(self) -> str: ...

    @property
    def score_key(self) -> str:
        """Node annotation with pair scores; empty if the vendor has none."""

    @property
    def node_lock(self) -> NodeLock | None:
        """What its plugin takes off when it has served a pod; None where it waits for nothing and takes off nothing."""

    @property
    def to_allocate_key(self) -> str: ...

    @property
    def allocated_key(self) -> str: ...

    def decode_register(self, text: str, subject: str) -> tuple[Device, ...]:
        """Cards in a register annotation, every form ever written. Raises DecodeError."""

    def decode_pair_scores(self, text: str, subject: str) -> dict[str, dict[str, int]]:
        """Pair scores of a score annotation. Raises DecodeError."""

    def admit(self, container: Container) -> ContainerChange | Refusal:
        """Admission of one container (spec/scheduler 3.2)."""

    def hiding_env(self, container: Container, *, foreign: bool) -> tuple[tuple[str, str], ...]:
        """Variables that keep a container without devices from seeing cards that its image or its pod names.

        `foreign`: its pod belongs to another scheduler, which may give it cards under names not known here.
        """

    def check_env(self, container: Container, *, allow_disable_control: bool) -> Refusal | None:
        """Refuses variables that would lift the limits of a container that asks for devices."""

    def check_annotations(self, annotations: Mapping[str, str]) -> Refusal | None:
        """Refuses selector values that can never match or are malformed."""

    def request(self, container: Container) -> DeviceRequest | Refusal | None:
        """What the container asks for, after defaults; None if nothing (spec/scheduler 4.1)."""

    def selectors(self, annotations: Mapping[str, str]) -> Selectors: ...

    def pick(
        self,
        state: NodeState,
        request: DeviceRequest,
        selectors: Selectors,
        policies: Policies,
        quota: ShareCheck | None = None,
    ) -> CardPick | Rejection:
        """Chooses cards on one node for one request (spec/scheduler 4.5, 4.6); `state.uses` has earlier containers."""

    def explain(
        self,
        state: NodeState,
        request: DeviceRequest,
        selectors: Selectors,
        policies: Policies,
        quota: ShareCheck | None = None,
    ) -> CardReports:
        """What `pick` looks at, for every card and without stopping early. For people, never on the hot path."""

    def use_of(self, share: DeviceShare) -> Use:
        """What one share takes from its card."""


Registry = Sequence[DeviceType]
"""The vendors in force, sorted by word."""
