"""Quota of a namespace: limits on device memory, cores and counts in ordinary ResourceQuota objects.

Sources: spec/contract 3.1 (keys), spec/scheduler 3.4; reports B17, B19, B20. Differences from upstream on purpose:
of several objects the smallest limit holds, as in Kubernetes; counts are limited, too, because Kubernetes' own
controller ignores `limits.` of extended resources; memory written as a size (`10Gi`) is one, and not so many MiB
that it limits nothing (as B13); and admission counts only what it can know, so that it never
refuses what `/filter` would accept. Scopes are not looked at: every pod of the namespace counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

import msgspec

from hami.core.allocation import larger
from hami.core.device_type import DeviceType, Registry
from hami.core.model import NO_USE, ContainerKind, DeviceRequest, PodRequest, Use
from hami.core.objects import ResourceQuota
from hami.core.units import floor_whole, size_in_bytes

LIMITS_PREFIX: Final = "limits."
REQUESTS_PREFIX: Final = "requests."
_FULL_CORES: Final = 100
_MIB: Final = 1024 * 1024
_MIG: Final = "mig"
"""The word of a mode annotation that lets MIG slices serve the pod."""


class Limit(msgspec.Struct, frozen=True):
    """A limit of one resource: `value` in `unit` (MiB, % or cards), and the ResourceQuota that sets it.

    `factor`: how many of `unit` one of the object's own units is. `prefix`: what stands before the resource's name in
    the object's key.
    """

    quota: str
    resource: str
    value: int
    unit: str
    factor: int = 1
    prefix: str = LIMITS_PREFIX

    @property
    def key(self) -> str:
        """The key in the object's `spec.hard`."""
        return self.prefix + self.resource


class VendorLimits(msgspec.Struct, frozen=True):
    """Limits of one vendor (word) in one namespace; None: not limited."""

    word: str
    memory: Limit | None = None
    cores: Limit | None = None
    count: Limit | None = None

    def against(self, use: Use) -> tuple[tuple[Limit, int], ...]:
        """The limits that are set, each with what `use` means in its unit."""
        pairs = ((self.memory, use.memory_mib), (self.cores, use.core_percent), (self.count, use.slots))
        return tuple((limit, amount) for limit, amount in pairs if limit is not None)


NamespaceLimits = tuple[VendorLimits, ...]
"""Only vendors that are limited."""


class _VendorRoom(msgspec.Struct, frozen=True):
    word: str
    memory_mib: int | None
    core_percent: int | None
    slots: int | None = None


class Room(msgspec.Struct, frozen=True):
    """What a namespace may still take, hashable; negative where more is used than allowed."""

    vendors: tuple[_VendorRoom, ...]

    def __call__(self, word: str, use: Use) -> bool:
        """`core.fit.QuotaRoom`: whether a pod may hold this much of the vendor."""
        for vendor in self.vendors:
            if vendor.word == word:
                memory = vendor.memory_mib is None or use.memory_mib <= vendor.memory_mib
                cores = vendor.core_percent is None or use.core_percent <= vendor.core_percent
                return memory and cores and (vendor.slots is None or use.slots <= vendor.slots)
        return True

    def text(self, word: str) -> str:
        """What is left for one pod of a vendor, in words."""
        vendor = next((vendor for vendor in self.vendors if vendor.word == word), _VendorRoom(word, None, None))
        memory = "any memory" if vendor.memory_mib is None else f"{vendor.memory_mib} MiB"
        cores = "any cores" if vendor.core_percent is None else f"{vendor.core_percent} % cores"
        count = "" if vendor.slots is None else f", {vendor.slots} cards"
        return f"{memory}, {cores}{count} for the pod"


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


def each_limit(quota: ResourceQuota, registry: Registry) -> Iterator[Limit]:
    """Every limit that one object sets, key by key."""
    for vendor in registry:
        yield from _memory_limits(quota, vendor)
        yield from _cores_limits(quota, vendor)
        yield from _count_limits(quota, vendor)


def effective_limits(quotas: Iterable[ResourceQuota], registry: Registry) -> NamespaceLimits:
    """The limits that hold in a namespace with these objects; of equal ones the first by name is named."""
    ordered = sorted(quotas, key=lambda quota: quota.metadata.name)
    found = []
    for vendor in registry:
        limits = VendorLimits(
            vendor.word,
            _smallest(chain.from_iterable(_memory_limits(quota, vendor) for quota in ordered)),
            _smallest(chain.from_iterable(_cores_limits(quota, vendor) for quota in ordered)),
            _smallest(chain.from_iterable(_count_limits(quota, vendor) for quota in ordered)),
        )
        if limits.against(NO_USE):
            found.append(limits)
    return tuple(found)


def room_of(limits: NamespaceLimits, used: Mapping[str, Use]) -> Room:
    """What is left of `limits` when the namespace's pods use `used` (by vendor word)."""
    rooms = []
    for vendor in limits:
        use = used.get(vendor.word, NO_USE)
        memory = vendor.memory.value - use.memory_mib if vendor.memory is not None else None
        cores = vendor.cores.value - use.core_percent if vendor.cores is not None else None
        slots = vendor.count.value - use.slots if vendor.count is not None else None
        rooms.append(_VendorRoom(vendor.word, memory, cores, slots))
    return Room(tuple(rooms))


def excesses(
    namespace: str, limits: NamespaceLimits, used: Mapping[str, Use], requested: Mapping[str, Use]
) -> Iterator[Excess]:
    """Every limit that `requested` (by vendor word) on top of `used` would exceed."""
    for vendor in limits:
        use, more = used.get(vendor.word, NO_USE), requested.get(vendor.word)
        if more is None:
            continue
        for (limit, held), (_, wanted) in zip(vendor.against(use), vendor.against(more), strict=True):
            if held + wanted > limit.value:
                yield Excess(namespace, limit, held, wanted)


def known_use(request: PodRequest, *, slices_possible: bool) -> dict[str, Use]:
    """The least that a pod takes of each vendor, as far as its numbers say so without a card.

    Memory as a percentage counts 0 until the card is known, and where a MIG slice may serve the pod so do cores: a
    slice charges its own. A pod whose mode annotation excludes MIG gets none. The pod's largest init container and its
    app containers do not run together (4.10).
    """
    sums: dict[str, dict[ContainerKind, Use]] = {}
    for container in request.containers:
        for asked in container.devices:
            kinds = sums.setdefault(asked.vendor, {})
            modes = request.selectors_of(asked.vendor).modes
            sliced = slices_possible and (not modes or _MIG in modes)
            use, known = _asked(asked, slices_possible=sliced), kinds.get(container.kind, NO_USE)
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


def _memory_limits(quota: ResourceQuota, vendor: DeviceType) -> Iterator[Limit]:
    names = vendor.quota_names
    for limit in _limits(quota, names.memory, "MiB", factor=max(names.memory_factor, 1)):
        size_bytes = size_in_bytes(quota.hard[limit.key])
        yield limit if size_bytes is None else msgspec.structs.replace(limit, value=size_bytes // _MIB)


def _cores_limits(quota: ResourceQuota, vendor: DeviceType) -> Iterator[Limit]:
    return _limits(quota, vendor.quota_names.cores, "%")


def _count_limits(quota: ResourceQuota, vendor: DeviceType) -> Iterator[Limit]:
    return _limits(quota, vendor.quota_names.count, "cards", (LIMITS_PREFIX, REQUESTS_PREFIX))


def _limits(
    quota: ResourceQuota, resource: str, unit: str, prefixes: tuple[str, ...] = (LIMITS_PREFIX,), factor: int = 1
) -> Iterator[Limit]:
    for prefix in prefixes:
        key = prefix + resource
        if resource and key in quota.hard:
            value = _value(quota.hard[key]) * factor
            yield Limit(quota.metadata.name, resource, value, unit, factor, prefix)


def _smallest(limits: Iterable[Limit]) -> Limit | None:
    return min(limits, key=lambda limit: limit.value, default=None)


def _value(quantity: str | int | float) -> int:
    try:
        return floor_whole(quantity)
    except ValueError:
        # The API server lets no such text in; a limit that cannot be read must not read as none (report B20).
        return 0
