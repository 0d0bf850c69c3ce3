"""What the node knows about its cards, behind one protocol: the driver for real, or a profile that stands in for it.

Every call has a time limit inside; what cannot be read raises NvmlError, one card that cannot be read becomes a
problem beside the others (reports B85, B106). Units: bytes for memory as NVML gives it, MiB where the name says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Protocol

import msgspec

from hami.core.errors import ConfigError
from hami.core.model import MigPlacement, MigProfileOffer

NUMA_UNKNOWN: Final = -1

CRITICAL_ERROR: Final = "xid"
ECC_DOUBLE_BIT: Final = "ecc-double-bit"
ECC_SINGLE_BIT: Final = "ecc-single-bit"
NO_EVENTS: Final = "no-events"
"""No error: the card does not report any, and only its silence can be seen."""


class MigComputeFacts(msgspec.Struct, frozen=True):
    """One compute instance, which is what a container gets: the MIG device."""

    id: int
    uuid: str
    """`MIG-…`; empty where the driver lists no device for it."""
    slices: int
    index: int = -1
    """Position among the MIG devices of the card."""


class MigInstanceFacts(msgspec.Struct, frozen=True):
    """One GPU instance that exists on a card. Without compute instances it is half made and of no use."""

    id: int
    profile: int
    """Number of its profile, as in `MigProfileOffer`."""
    slices: int
    memory_mib: int
    placement: MigPlacement
    media: bool = False
    compute: tuple[MigComputeFacts, ...] = ()


class CardFacts(msgspec.Struct, frozen=True):
    """One card as the driver describes it."""

    uuid: str
    index: int
    name: str
    memory_bytes: int | None
    """None where the driver says that the query is not supported (cards with unified memory, report B86)."""
    pci_bus_id: str = ""
    numa: int = NUMA_UNKNOWN
    minor: int = 0
    """The n of the device node `nvidia<n>`."""
    mig_capable: bool = False
    """Whether the card has a MIG mode. What profiles it has may be told only while that is on."""
    mig_enabled: bool = False
    mig_profiles: tuple[MigProfileOffer, ...] = ()
    mig_instances: tuple[MigInstanceFacts, ...] = ()
    """Ordered by id; empty where MIG mode is off."""


class Cards(msgspec.Struct, frozen=True):
    """All cards that could be read, ordered by index, and a text for each that could not."""

    cards: tuple[CardFacts, ...]
    problems: tuple[str, ...] = ()
    driver_version: str = ""


class PairFacts(msgspec.Struct, frozen=True):
    """How two cards are joined. `level` is NVML's common ancestor; links are counted per direction."""

    first: str
    second: str
    level: str
    """internal, single, multiple, hostbridge, node or system; empty if unknown."""
    links_forward: int = 0
    links_back: int = 0
    through_switch: int = 0
    """Links of the pair through NVSwitch: the smaller count of the two cards."""


class HealthEvent(msgspec.Struct, frozen=True):
    """An error event of the driver. An empty `uuid` means that it cannot be told which card is meant."""

    uuid: str
    kind: str
    code: int = 0
    """The XID for `xid`, else 0."""


class ProcessFacts(msgspec.Struct, frozen=True):
    """A process that uses a card or a MIG device, `uuid`; host pid and its memory there.

    A pid of 0 stands for a card that does not tell: it may be in use.
    """

    uuid: str
    pid: int
    memory_bytes: int


class CardLoad(msgspec.Struct, frozen=True):
    """How full and how busy a card is now; None where the driver does not offer it, or failed.

    `problems`: each question that failed. A card that does not even tell its id has an empty `uuid`.
    """

    uuid: str
    index: int
    name: str
    memory_used_bytes: int | None = None
    gpu_percent: int | None = None
    memory_controller_percent: int | None = None
    problems: tuple[str, ...] = ()


class DeviceProbe(Protocol):
    """Reads the cards of this node. Safe to call from one event loop; calls may overlap."""

    async def cards(self) -> Cards:
        """All cards. Raises NvmlError if the driver cannot be asked at all."""

    async def pairs(self) -> tuple[PairFacts, ...]:
        """How the cards are joined, each pair once. Raises NvmlError."""

    async def lost(self) -> dict[str, str]:
        """Cards that do not answer now, by uuid, each with what the driver said. Raises NvmlError."""

    async def damaged(self) -> dict[str, str]:
        """Cards that answer and must not be used, by uuid, each with the reason. Raises NvmlError."""

    async def events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        """Waits for error events, at most `timeout_s`; empty if there were none. Raises NvmlError."""

    async def processes(self) -> tuple[ProcessFacts, ...]:
        """Who uses which card or MIG device. Raises NvmlError."""

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        """Switches a card's MIG mode, now. Raises NvmlError; a card that would need a reset keeps its mode then."""

    async def create_mig(self, uuid: str, profile: int, placement: MigPlacement) -> MigInstanceFacts:
        """Makes a GPU instance and a compute instance that fills it. Raises NvmlError, and leaves neither behind.

        A call that is cut off may leave a GPU instance without a compute instance, or finish later.
        """

    async def destroy_mig(self, uuid: str, instance: int) -> None:
        """Takes a GPU instance away with its compute instances. Raises NvmlError, for one in use too."""

    async def loads(self) -> tuple[CardLoad, ...]:
        """Memory in use and utilisation of each card that answers, ordered by index. Raises NvmlError."""

    async def close(self) -> None:
        """Ends the session with the driver."""


def open_probe(
    source: str, *, node_name: str = "", driver_root: Path = Path("/"), state_dir: Path | None = None
) -> DeviceProbe:
    """The probe for `real`, or for `sim:PROFILE` with a profile's name or path. Raises ConfigError.

    `node_name` makes the ids of simulated cards different on every node; `state_dir` keeps their MIG instances, which
    outlive the process (None: they do not); under `driver_root` the driver's library is looked for (spec/node 1.2).
    """
    kind, _, profile = source.partition(":")
    if kind == "real" and not profile:
        from hami.nvml.real import RealProbe

        return RealProbe(driver_root=driver_root)
    if kind == "sim" and profile:
        from hami.nvml.profile_file import find_profile
        from hami.nvml.simulated import SimulatedProbe

        return SimulatedProbe(find_profile(profile), node_name, state_dir)
    raise ConfigError(f"NVML source {source!r}: allowed are real and sim:PROFILE")
