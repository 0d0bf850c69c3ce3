"""Quotas of namespaces: what ResourceQuota objects allow, against what the ledger's pods hold (spec/scheduler 3.4).

Admission advises: it refuses what cannot fit whatever card is chosen. `/filter` decides, in the tick in which it
reserves. A change of an object replaces its limits in one step, so that no moment is without a limit (report B20).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from hami.core import quota
from hami.core.device_type import Refusal, Registry
from hami.core.fit import evaluate
from hami.core.model import NodeState, PodRequest, Use
from hami.core.objects import ResourceQuota
from hami.core.quota import Excess, Limit, NamespaceLimits, Room
from hami.placement.claims import Claim
from hami.placement.namespace_use import NamespaceUse


class Raise(msgspec.Struct, frozen=True):
    """A larger number for one key of one ResourceQuota object, in the resource's own unit."""

    quota: str
    key: str
    old: int
    new: int


class Quotas:
    """Limits by namespace. Fed by a reflector; without objects nothing is limited.

    What feeds it says whether limits changed: most events of ResourceQuota objects are about their status.
    """

    def __init__(self, registry: Registry, used: NamespaceUse) -> None:
        self._registry = registry
        self._used = used
        self._objects: dict[str, dict[str, ResourceQuota]] = {}
        self._limits: dict[str, NamespaceLimits] = {}

    # Feeding

    def apply(self, found: ResourceQuota) -> bool:
        """An object was added or changed."""
        namespace = found.metadata.namespace
        self._objects.setdefault(namespace, {})[found.metadata.name] = found
        return self._renew(namespace)

    def remove(self, namespace: str, name: str) -> bool:
        objects = self._objects.get(namespace, {})
        return objects.pop(name, None) is not None and self._renew(namespace)

    def replace(self, found: Iterable[ResourceQuota]) -> bool:
        """Takes a complete list."""
        before = self._limits
        self._objects, self._limits = {}, {}
        for each in found:
            self._objects.setdefault(each.metadata.namespace, {})[each.metadata.name] = each
        for namespace in list(self._objects):
            self._renew(namespace)
        return before != self._limits

    def renew(self) -> None:
        """The vendors' resource names or factors have changed."""
        for namespace in list(self._objects):
            self._renew(namespace)

    def _renew(self, namespace: str) -> bool:
        before = self._limits.get(namespace, ())
        limits = quota.effective_limits(self._objects[namespace].values(), self._registry)
        if limits:
            self._limits[namespace] = limits
        else:
            self._limits.pop(namespace, None)
        if not self._objects[namespace]:
            del self._objects[namespace]
        return limits != before

    # Deciding

    def limits(self) -> Iterator[tuple[str, NamespaceLimits]]:
        """Limited namespaces in order, for metrics."""
        for namespace in sorted(self._limits):
            yield namespace, self._limits[namespace]

    def limited(self, namespace: str) -> bool:
        """Whether any limit holds in the namespace."""
        return namespace in self._limits

    def room(self, namespace: str, *without: Claim | None) -> Room | None:
        """What the namespace may still take, as if `without` held nothing; None: not limited."""
        limits = self._limits.get(namespace)
        return quota.room_of(limits, self._used.without(namespace, *without)) if limits else None

    def overdrawn(self, namespace: str) -> bool:
        """Whether the namespace's pods and reservations together hold more than it may."""
        limits = self._limits.get(namespace)
        if not limits:
            return False
        room, used = quota.room_of(limits, {}), self._used.of(namespace)
        return not all(room(word, use) for word, use in used.items())

    def advise(self, namespace: str, request: PodRequest, *, slices_possible: bool) -> Refusal | None:
        """A refusal if the pod cannot fit in its namespace's quota, by the numbers that are known without a card."""
        limits = self._limits.get(namespace)
        if not limits:
            return None
        known = quota.known_use(request, slices_possible=slices_possible)
        excess = next(quota.excesses(namespace, limits, self._used.of(namespace), known), None)
        return None if excess is None else Refusal(excess.text)

    def raises(self, namespace: str, taken: Mapping[str, Use], *without: Claim) -> tuple[Raise, ...]:
        """What would have to be raised so that the namespace may take this much more (by vendor word)."""
        found = []
        used = self._used.without(namespace, *without)
        for excess in quota.excesses(namespace, self._limits.get(namespace, ()), used, taken):
            needed = excess.used + excess.requested
            for limit in self._limits_on(namespace, excess.limit.resource):
                if limit.value < needed:
                    new = -(-needed // limit.factor)
                    found.append(Raise(limit.quota, limit.key, limit.value // limit.factor, new))
        return tuple(found)

    def _limits_on(self, namespace: str, resource: str) -> Iterator[Limit]:
        """What each key of each object of the namespace allows of the resource."""
        for _, found in sorted(self._objects.get(namespace, {}).items()):
            yield from (limit for limit in quota.each_limit(found, self._registry) if limit.resource == resource)

    def excess(
        self, namespace: str, request: PodRequest, state: NodeState, without: Claim | None = None
    ) -> Excess | None:
        """The limit that keeps the pod off a node, with the numbers of the first card that was too much."""
        room, limits = self.room(namespace, without), self._limits.get(namespace)
        if room is None or not limits:
            return None
        refused: dict[str, Use] = {}

        def watched(word: str, use: Use) -> bool:
            fits = room(word, use)
            if not fits:
                refused.setdefault(word, use)
            return fits

        evaluate(state, request, self._registry, watched)
        return next(quota.excesses(namespace, limits, self._used.without(namespace, without), refused), None)
