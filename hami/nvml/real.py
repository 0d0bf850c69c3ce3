"""The driver, through pynvml.

One session owner, every call with a time limit on a thread of its own (traps T-24, T-26; report B106).
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pynvml

from hami.core.errors import DriverReplacedError, NvmlError
from hami.core.model import MigPlacement
from hami.nvml import real_mig as mig
from hami.nvml.caller import Caller
from hami.nvml.conditions import EventWatch, read_damaged, read_lost, watch_events
from hami.nvml.loads import read_loads
from hami.nvml.offered import NOT_OFFERED, offered, words
from hami.nvml.probe import (
    NUMA_UNKNOWN,
    CardFacts,
    CardLoad,
    Cards,
    HealthEvent,
    MigInstanceFacts,
    PairFacts,
    ProcessFacts,
)

_CALL_TIMEOUT_S: Final = 10.0
_EVENT_GRACE_S: Final = 5.0
_PCI_DEVICES: Final = Path("/sys/bus/pci/devices")
_MIB: Final = 1024 * 1024
_LIBRARY: Final = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS: Final = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "usr/lib",
    "usr/lib/wsl/lib",
    "lib",
)
"""Where distributions put it (spec/node 1.2): also Debian, Jetson, Arch, WSL and, below its own root, NixOS."""

_LEVELS: Final = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "internal",
    pynvml.NVML_TOPOLOGY_SINGLE: "single",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "multiple",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "hostbridge",
    pynvml.NVML_TOPOLOGY_NODE: "node",
    pynvml.NVML_TOPOLOGY_SYSTEM: "system",
}
R = TypeVar("R")


class RealProbe:
    """Implements `DeviceProbe` over libnvidia-ml. Opens the session at the first call and again after a failure."""

    def __init__(
        self, timeout_s: float = _CALL_TIMEOUT_S, pci_devices: Path = _PCI_DEVICES, driver_root: Path = Path("/")
    ) -> None:
        self._timeout_s = timeout_s
        self._driver_root = driver_root
        self._pci_devices = pci_devices
        self._caller = Caller("nvml")
        self._event_caller = Caller("nvml-events")
        self._open = False
        self._events: EventWatch | None = None
        self._listed: frozenset[str] = frozenset()
        self._watched: frozenset[str] = frozenset()

    async def cards(self) -> Cards:
        found = await self._call("cards", self._read_cards)
        self._listed = frozenset(card.uuid for card in found.cards)
        return found

    async def pairs(self) -> tuple[PairFacts, ...]:
        return await self._call("links", _read_pairs)

    async def lost(self) -> dict[str, str]:
        return await self._call("liveness", read_lost)

    async def damaged(self) -> dict[str, str]:
        return await self._call("row remapping", read_damaged)

    async def processes(self) -> tuple[ProcessFacts, ...]:
        return await self._call("processes", _read_processes)

    async def loads(self) -> tuple[CardLoad, ...]:
        return await self._call("utilisation", read_loads)

    async def set_mig_mode(self, uuid: str, *, enabled: bool) -> None:
        await self._call(f"MIG mode of {uuid}", partial(mig.set_mode, uuid, enabled=enabled))

    async def create_mig(self, uuid: str, profile: int, placement: MigPlacement) -> MigInstanceFacts:
        return await self._call(f"MIG instance on {uuid}", partial(mig.create, uuid, profile, placement))

    async def destroy_mig(self, uuid: str, instance: int) -> None:
        await self._call(f"end of MIG instance {instance} of {uuid}", partial(mig.destroy, uuid, instance))

    async def events(self, timeout_s: float) -> tuple[HealthEvent, ...]:
        watch = await self._event_watch()
        if watch.silent:
            silent, watch.silent = watch.silent, ()
            return silent
        try:
            return await self._event_caller.call(
                "event wait", lambda: watch.wait(int(timeout_s * 1000)), timeout_s + _EVENT_GRACE_S
            )
        except pynvml.NVMLError as error:
            self._events = None
            raise NvmlError(f"event wait: {error}") from error

    async def _event_watch(self) -> EventWatch:
        """The set of events, made anew for cards that came since."""
        if self._events is not None and self._watched == self._listed:
            return self._events
        if self._events is not None:
            await self._call("end of event registration", self._events.free)
            self._events = None
        self._events, self._watched = await self._call("event registration", watch_events), self._listed
        return self._events

    async def close(self) -> None:
        if self._open:
            self._open = False
            # The process ends and takes the session along; a driver that hangs must not make an error of it.
            with contextlib.suppress(NvmlError):
                await self._caller.call("shutdown", _shutdown, self._timeout_s)
        self._caller.close()
        self._event_caller.close()

    async def _call(self, what: str, function: Callable[[], R]) -> R:
        def opened() -> R:
            if not self._open:
                load_library(self._driver_root)
                pynvml.nvmlInit()
                self._open = True
            return function()

        try:
            return await self._caller.call(what, opened, self._timeout_s)
        except (pynvml.NVMLError_Uninitialized, pynvml.NVMLError_DriverNotLoaded) as error:
            self._open = False
            raise NvmlError(f"{what}: {error}") from error
        except pynvml.NVMLError_LibRmVersionMismatch as error:
            self._open = False
            raise DriverReplacedError(f"{what}: the driver was exchanged, its library here is the old one") from error
        except pynvml.NVMLError_LibraryNotFound as error:
            raise NvmlError(f"{what}: {_no_library(self._driver_root)}") from error
        except pynvml.NVMLError as error:
            raise NvmlError(f"{what}: {error}") from error

    def _read_cards(self) -> Cards:
        found: list[CardFacts] = []
        problems: list[str] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                found.append(_read_card(index, self._pci_devices))
            except pynvml.NVMLError as error:
                problems.append(f"card {index}: {error}")
        return Cards(tuple(found), tuple(problems), _driver_version())


def _no_library(driver_root: Path) -> str:
    """What to do about it: the container was started without the driver (HAMi #861, #1568, #1940, #2860)."""
    return (
        f"{_LIBRARY} is neither in this container nor below the driver's root {driver_root}; start the container "
        "under the nvidia runtime class (chart: devicePlugin.runtimeClassName) or name the folder of the node that "
        "the driver lies in (chart: devicePlugin.nvidiaDriverRoot)"
    )


def load_library(driver_root: Path) -> Path | None:
    """Loads the driver's library from under `driver_root`, so that pynvml finds it by its name; None if not there."""
    if driver_root == Path("/"):
        return None
    for folder in _LIBRARY_FOLDERS:
        path = driver_root / folder / _LIBRARY
        if path.exists():
            try:
                ctypes.CDLL(str(path.resolve()), mode=ctypes.RTLD_GLOBAL)
            except OSError:
                continue
            return path
    return None


def _read_card(index: int, pci_devices: Path) -> CardFacts:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    bus_id = _bus_id(handle)
    profiles = mig.read_profiles(handle)
    return CardFacts(
        uuid=words(partial(pynvml.nvmlDeviceGetUUID, handle)),
        index=index,
        name=words(partial(pynvml.nvmlDeviceGetName, handle)),
        memory_bytes=_memory_bytes(handle),
        pci_bus_id=bus_id,
        numa=read_numa(pci_devices, bus_id),
        minor=offered(lambda: int(pynvml.nvmlDeviceGetMinorNumber(handle)), index),
        mig_capable=mig.is_capable(handle),
        mig_enabled=mig.is_enabled(handle),
        mig_profiles=profiles,
        mig_instances=mig.read_instances(handle, profiles),
    )


def _driver_version() -> str:
    """Empty where the driver does not say: cards are no worse for it."""
    try:
        return words(pynvml.nvmlSystemGetDriverVersion)
    except pynvml.NVMLError:
        return ""


def _bus_id(handle: Any) -> str:
    """Empty for boards that are not on a PCI bus (Jetson Thor, HAMi#1151)."""
    return offered(lambda: words(lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId), "")


def read_numa(pci_devices: Path, bus_id: str) -> int:
    """NUMA node of a PCI device from sysfs, -1 if there is none (spec/node 3.2; report B100).

    NVML writes the domain with eight digits, sysfs with as many as it needs, at least four (`0000`, and `10000` for
    buses behind a controller of their own).
    """
    domain, colon, rest = bus_id.lower().partition(":")
    try:
        name = f"{int(domain, 16):04x}:{rest}" if colon else bus_id.lower()
        return max(NUMA_UNKNOWN, int((pci_devices / name / "numa_node").read_text(encoding="ascii")))
    except (OSError, ValueError):
        return NUMA_UNKNOWN


def _memory_bytes(handle: Any) -> int | None:
    return offered(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).total), None)


class _End(NamedTuple):
    """One card as an end of links."""

    handle: Any
    uuid: str
    bus_id: str
    links: list[str]


def _read_pairs() -> tuple[PairFacts, ...]:
    ends = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            ends.append(_read_end(index))
        except pynvml.NVMLError:
            # A card that fails has no pairs; `cards` or `lost` says why, and the other cards keep theirs.
            continue
    to_cards = {end.bus_id for end in ends}
    return tuple(_read_pair(first, second, to_cards) for first, second in itertools.combinations(ends, 2))


def _read_end(index: int) -> _End:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    uuid = words(partial(pynvml.nvmlDeviceGetUUID, handle))
    return _End(handle, uuid, _bus_id(handle).lower(), _links_of(handle))


def _read_pair(first: _End, second: _End, to_cards: set[str]) -> PairFacts:
    level = None
    with contextlib.suppress(pynvml.NVMLError):
        level = pynvml.nvmlDeviceGetTopologyCommonAncestor(first.handle, second.handle)
    return PairFacts(
        first=first.uuid,
        second=second.uuid,
        level=_LEVELS.get(level, "") if level is not None else "",
        links_forward=first.links.count(second.bus_id),
        links_back=second.links.count(first.bus_id),
        through_switch=min(_to_others(first.links, to_cards), _to_others(second.links, to_cards)),
    )


def _links_of(handle: Any) -> list[str]:
    """PCI bus ids at the other ends of the active NVLinks."""
    ends = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED:
                ends.append(_far_end(handle, link))
        except NOT_OFFERED:
            continue
    return ends


def _far_end(handle: Any, link: int) -> str:
    return words(lambda: pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).lower()


def _to_others(ends: list[str], cards: set[str]) -> int:
    return sum(end not in cards for end in ends)


def _read_processes() -> tuple[ProcessFacts, ...]:
    found: list[ProcessFacts] = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            card = pynvml.nvmlDeviceGetHandleByIndex(index)
            handles = [card, *(device for _, device in mig.device_handles(card))]
            uuids = [words(partial(pynvml.nvmlDeviceGetUUID, handle)) for handle in handles]
        except pynvml.NVMLError:
            # A card that fails has no processes to be told of; `lost` says why.
            continue
        for handle, uuid in zip(handles, uuids, strict=True):
            found += _processes_of(handle, uuid)
    return tuple(found)


def _processes_of(handle: Any, uuid: str) -> list[ProcessFacts]:
    """Those of one card or MIG device; where it does not tell, one without a number: it may be in use."""
    found: list[ProcessFacts] = []
    for read in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            processes: Sequence[Any] = offered(partial(read, handle), ())
        except pynvml.NVMLError:
            return [ProcessFacts(uuid, 0, 0)]
        found += [ProcessFacts(uuid, int(each.pid), int(each.usedGpuMemory or 0)) for each in processes]
    return found


def _shutdown() -> None:
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        # The session is gone either way.
        return
