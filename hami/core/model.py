"""Frozen values that every room shares: cards, shares, uses, requests.

Memory is MiB, compute is percent of one card, everywhere and always. Sources: spec/contract 3.1-3.3,
spec/scheduler 2.3-2.5 and 4.1. None of them can be part of a cycle, so the collector does not look at them.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import Final

import msgspec

INT32_MAX: Final = 2**31 - 1
"""Upper bound of counts, memory (MiB) and cores in registers and requests (upstream stores them as int32)."""


class MigPlacement(msgspec.Struct, frozen=True, gc=False):
    """A run of memory slices on a MIG card: first slice and number of slices."""

    start: int
    size: int

    def overlaps(self, other: MigPlacement) -> bool:
        """Whether both hold a memory slice in common."""
        return self.start < other.start + other.size and other.start < self.start + self.size


class MigProfileOffer(msgspec.Struct, frozen=True):
    """One GPU instance profile that a driver offers on a card, by its number of compute slices (spec/node 5.2)."""

    slices: int
    """The N of `Ng.…`."""
    memory_mib: int
    slice_count: int
    multiprocessors: int
    placements: tuple[MigPlacement, ...] = ()
    number: int = -1
    """The driver's number of the profile (`NVML_GPU_INSTANCE_PROFILE_…`), by which instances are made."""
    media: bool = False
    """The variant with media extensions (`+me`)."""


class MigProfile(msgspec.Struct, frozen=True, gc=False):
    """One MIG profile that a card allows, as its plugin registered it (spec/scheduler 2.5)."""

    name: str
    memory_mib: int
    core_percent: int
    slice_count: int
    placements: tuple[MigPlacement, ...]


class Device(msgspec.Struct, frozen=True, gc=False):
    """One registered card. `memory_mib` and `core_percent` arrive scaled; `slots` is the split count."""

    id: str
    index: int
    slots: int
    memory_mib: int
    core_percent: int
    type: str
    numa: int
    healthy: bool
    vendor: str
    """Common word of the vendor that registered it, for example `NVIDIA`."""
    mode: str = "hami-core"
    mig_profiles: tuple[MigProfile, ...] = ()

    def serves(self, word: str) -> bool:
        """Whether requests for this vendor may get the card: its type has the vendor's word in it (scheduler 4.3)."""
        return self.vendor == word and _has_word(self.type, word)


@lru_cache(maxsize=1024)
def _has_word(card_type: str, word: str) -> bool:
    return word.lower() in card_type.lower()


class DeviceShare(msgspec.Struct, frozen=True, gc=False):
    """A part of one card given to one container: an entry of the allocation annotations (spec/scheduler 2.3)."""

    device_id: str
    type: str
    """The vendor's common word, for example `NVIDIA`."""
    memory_mib: int
    core_percent: int


ContainerShares = tuple[DeviceShare, ...]
"""Shares of one container, in order; empty for a container without devices."""

VendorShares = tuple[ContainerShares, ...]
"""One entry per container of the pod: init containers first, then app containers (spec/scheduler 2.3)."""

Allocation = dict[str, VendorShares]
"""Vendor word -> shares of every container. Only vendors that the pod uses are present."""


class Use(msgspec.Struct, frozen=True, gc=False):
    """What pods take from one card."""

    slots: int = 0
    memory_mib: int = 0
    core_percent: int = 0

    def plus(self, other: Use) -> Use:
        return Use(self.slots + other.slots, self.memory_mib + other.memory_mib, self.core_percent + other.core_percent)

    def __add__(self, other: Use) -> Use:
        return self.plus(other)

    def minus(self, other: Use) -> Use:
        return Use(self.slots - other.slots, self.memory_mib - other.memory_mib, self.core_percent - other.core_percent)


NO_USE: Final = Use()

Charge = dict[str, Use]
"""Device id -> effective use of one pod on its node, after the init-container max rule (spec/scheduler 4.10)."""


class ContainerKind(enum.Enum):
    """How long a container holds its cards."""

    INIT = "init"
    SIDECAR = "sidecar"
    """An init container with restartPolicy Always: runs for the pod's life."""
    APP = "app"


class DeviceRequest(msgspec.Struct, frozen=True, gc=False):
    """What one container asks of one vendor, after defaults (spec/scheduler 4.1).

    `memory_mib` wins; when it is 0, `memory_percent` (1..100) of the chosen card is meant. Beside a `memory_mib`,
    `memory_percent` is what the container also wrote, 0 for nothing: upstream's card score looks at it first.
    """

    vendor: str
    count: int
    memory_mib: int
    memory_percent: int
    core_percent: int


class ContainerRequest(msgspec.Struct, frozen=True, gc=False):
    """One container: its kind and its requests, one per vendor; empty if it asks for no device."""

    kind: ContainerKind
    devices: tuple[DeviceRequest, ...] = ()


class Selectors(msgspec.Struct, frozen=True, gc=False):
    """Which cards the pod accepts. Empty tuples mean no constraint (spec/scheduler 2.1)."""

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_ids: tuple[str, ...] = ()
    nouse_ids: tuple[str, ...] = ()
    numa_bind: bool = False
    modes: str = ""
    """Value of `nvidia.com/vgpu-mode`; a card passes when it contains the card's mode. Empty: no constraint."""


NO_SELECTORS: Final = Selectors()


class Weights(msgspec.Struct, frozen=True, gc=False):
    """Device scoring weights (annotation `hami.io/device-scoring-weights`)."""

    slot: int = 1
    core: int = 1
    memory: int = 1


class Policies(msgspec.Struct, frozen=True, gc=False):
    """Node policy, ordered device policies, and weights (spec/scheduler 4.4, 4.5)."""

    node: str = "binpack"
    device: tuple[str, ...] = ("spread",)
    weights: Weights = Weights()


class PodRequest(msgspec.Struct, frozen=True, gc=False):
    """The shape of a pod's request: everything the evaluator needs, hashable, so that answers can be memoised.

    `containers` has one entry per container of the pod, init containers first; `selectors` is per vendor word.
    """

    containers: tuple[ContainerRequest, ...]
    selectors: tuple[tuple[str, Selectors], ...] = ()
    policies: Policies = Policies()

    def selectors_of(self, vendor: str) -> Selectors:
        return next((selectors for word, selectors in self.selectors if word == vendor), NO_SELECTORS)

    @property
    def asks_for_devices(self) -> bool:
        return any(container.devices for container in self.containers)


class NodeState(msgspec.Struct, frozen=True, gc=False):
    """One node as the evaluator sees it: cards in registration order, what is taken, what is cordoned.

    `uses[i]` belongs to `devices[i]`. `pair_scores[a][b]` is the link quality between two cards, 0 if unknown.
    """

    name: str
    devices: tuple[Device, ...]
    uses: tuple[Use, ...]
    cordoned: frozenset[str] = frozenset()
    pair_scores: dict[str, dict[str, int]] = {}
    mig_taken: dict[str, tuple[MigPlacement, ...]] = {}
    """Device id -> placements that reservations on a MIG card hold. A MIG card whose used slots exceed its known
    placements takes nothing new (spec/scheduler 6.3)."""
