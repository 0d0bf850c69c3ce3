"""Quota of a namespace: limits on device memory and cores in ordinary ResourceQuota objects.

Sources: spec/contract 3.1 (keys), spec/scheduler 3.4; reports B17, B19, B20. Two differences from upstream on purpose:
of several objects the smallest limit holds, as in Kubernetes, and admission counts only what it can know, so that it
never refuses what `/filter` would accept. Scopes are not looked at: every pod of the namespace counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from hami.core.allocation import larger
from hami.core.device_type import Registry
from hami.core.model import NO_USE, ContainerKind, DeviceRequest, PodRequest, Use
from hami.core.objects import ResourceQuota
from hami.core.units import floor_whole

LIMITS_PREFIX: Final = "limits."
_FULL_CORES: Final = 100


class Limit(msgspec.Struct, frozen=True):
    """The smallest limit of one resource: `value` in `unit` (MiB or %), and the ResourceQuota that sets it.

    `factor`: how many of `unit` one of the object's own units is.
    """

    quota: str
    resource: str
    value: int
    unit: str
    factor: int = 1


class VendorLimits(msgspec.Struct, frozen=True):
    """Limits of one vendor (word) in one namespace; None: not limited."""

    word: str
    memory: Limit | None = None
    cores: Limit | None = None


NamespaceLimits = tuple[VendorLimits, ...]
"""Only vendors that are limited."""


class _VendorRoom(msgspec.Struct, frozen=True):
    word: str
    memory_mib: int | None
    core_percent: int | None


class Room(msgspec.Struct, frozen=True):
    """What a namespace may still take, hashable; negative where more is used than allowed."""

    vendors: tuple[_VendorRoom, ...]

    def __call__(self, word: str, use: Use) -> bool:
        """`core.fit.QuotaRoom`: whether a pod may hold this much of the vendor."""
        for vendor in self.vendors:
            if vendor.word == word:
                memory = vendor.memory_mib is None or use.memory_mib <= vendor.memory_mib
                return memory and (vendor.core_percent is None or use.core_percent <= vendor.core_percent)
        return True

    def text(self, word: str) -> str:
        """What is left for one pod of a vendor, in words."""
        vendor = next((vendor for vendor in self.vendors if vendor.word == word), _VendorRoom(word, None, None))
        memory = "any memory" if vendor.memory_mib is None else f"{vendor.memory_mib} MiB"
        cores = "any cores" if vendor.core_percent is None else f"{vendor.core_percent} % cores"
        return f"{memory}, {cores} for the pod"


class Excess(msgspec.Struct, frozen=True):
    """A limit that a pod would exceed; `requested` is the least that the pod is known to take."""

    namespace: str
    limit: Limit
    used: int
    requested: int

    @property
    def text(self) -> str:
        """Upstream's words first, then the numbers."""
        unit = self.limit.unit
        return (
            f"exceeding resource quota {self.limit.quota} in namespace {self.namespace}: {self.limit.resource}"
            f" used {self.used} {unit}, requested {self.requested} {unit}, limit {self.limit.value} {unit}"
        )


def effective_limits(quotas: Iterable[ResourceQuota], registry: Registry) -> NamespaceLimits:
    """The limits that hold in a namespace with these objects; of equal ones the first by name is named."""
    ordered = sorted(quotas, key=lambda quota: quota.metadata.name)
    found = []
    for vendor in registry:
        names = vendor.quota_names
        memory = _smallest(ordered, names.memory, "MiB", max(names.memory_factor, 1))
        cores = _smallest(ordered, names.cores, "%", 1)
        if memory is not None or cores is not None:
            found.append(VendorLimits(vendor.word, memory, cores))
    return tuple(found)


def room_of(limits: NamespaceLimits, used: Mapping[str, Use]) -> Room:
    """What is left of `limits` when the namespace's pods use `used` (by vendor word)."""
    rooms = []
    for vendor in limits:
        use = used.get(vendor.word, NO_USE)
        memory = vendor.memory.value - use.memory_mib if vendor.memory is not None else None
        cores = vendor.cores.value - use.core_percent if vendor.cores is not None else None
        rooms.append(_VendorRoom(vendor.word, memory, cores))
    return Room(tuple(rooms))


def excesses(
    namespace: str, limits: NamespaceLimits, used: Mapping[str, Use], requested: Mapping[str, Use]
) -> Iterator[Excess]:
    """Every limit that `requested` (by vendor word) on top of `used` would exceed."""
    for vendor in limits:
        use, more = used.get(vendor.word, NO_USE), requested.get(vendor.word)
        if more is None:
            continue
        if vendor.memory is not None and use.memory_mib + more.memory_mib > vendor.memory.value:
            yield Excess(namespace, vendor.memory, use.memory_mib, more.memory_mib)
        if vendor.cores is not None and use.core_percent + more.core_percent > vendor.cores.value:
            yield Excess(namespace, vendor.cores, use.core_percent, more.core_percent)


def known_use(request: PodRequest, *, slices_possible: bool) -> dict[str, Use]:
    """The least that a pod takes of each vendor, as far as its numbers say so without a card.

    Memory as a percentage counts 0 until the card is known, and where a MIG slice may serve the pod so do cores: a
    slice charges its own. The pod's largest init container and its app containers do not run together (4.10).
    """
    sums: dict[str, dict[ContainerKind, Use]] = {}
    for container in request.containers:
        for asked in container.devices:
            kinds = sums.setdefault(asked.vendor, {})
            use, known = _asked(asked, slices_possible=slices_possible), kinds.get(container.kind, NO_USE)
            kinds[container.kind] = larger(known, use) if container.kind is ContainerKind.INIT else known.plus(use)
    return {
        word: kinds.get(ContainerKind.SIDECAR, NO_USE).plus(
            larger(kinds.get(ContainerKind.APP, NO_USE), kinds.get(ContainerKind.INIT, NO_USE))
        )
        for word, kinds in sums.items()
    }


def _asked(asked: DeviceRequest, *, slices_possible: bool) -> Use:
    cores = 0 if slices_possible else asked.count * min(asked.core_percent, _FULL_CORES)
    return Use(asked.count, asked.count * asked.memory_mib, cores)


def _smallest(quotas: Iterable[ResourceQuota], resource: str, unit: str, factor: int) -> Limit | None:
    key = LIMITS_PREFIX + resource
    limits = [
        Limit(quota.metadata.name, resource, _value(quota.hard[key]) * factor, unit, factor)
        for quota in quotas
        if resource and key in quota.hard
    ]
    return min(limits, key=lambda limit: limit.value, default=None)


def _value(quantity: str | int | float) -> int:
    try:
        return floor_whole(quantity)
    except ValueError:
        # The API server lets no such text in; a limit that cannot be read must not read as none (report B20).
        return 0
