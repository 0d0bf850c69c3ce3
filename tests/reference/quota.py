"""Namespace quotas (3.4): limits of ResourceQuota objects, use of the namespace's pods, the test inside Fit."""

from __future__ import annotations

from dataclasses import dataclass

from tests.reference.allocations import UndecodableError, Used, held_by, node_of
from tests.reference.model import Config, Object
from tests.reference.objects import exact_int, namespace_of


@dataclass(frozen=True, slots=True)
class Quota:
    """Effective limits of one namespace (None: no limit) and what its pods use already."""

    mem_limit: int | None = None
    cores_limit: int | None = None
    used_mem: int = 0
    used_cores: int = 0
    count_limit: int | None = None
    used_cards: int = 0

    def allows(self, placement: dict[str, Used]) -> bool:
        """Whether the pod's placement so far, collapsed, stays within all limits."""
        mem = self.used_mem + sum(used.mem for used in placement.values())
        cores = self.used_cores + sum(used.cores for used in placement.values())
        cards = self.used_cards + sum(used.slots for used in placement.values())
        if self.count_limit is not None and cards > self.count_limit:
            return False
        return (self.mem_limit is None or mem <= self.mem_limit) and (
            self.cores_limit is None or cores <= self.cores_limit
        )


def quota_of(namespace: str, quotas: list[Object], pods: list[Object], config: Config) -> Quota:
    """The smallest limit of all ResourceQuota objects of the namespace holds."""
    factor = max(config.memory_factor, 1)
    mem_limit = _smallest(f"limits.{config.memory_name}", namespace, quotas)
    used_mem = used_cores = used_cards = 0
    for pod in pods:
        if namespace_of(pod) != namespace or not node_of(pod):
            continue
        try:
            held = held_by(pod)
        except UndecodableError:
            continue
        used_mem += sum(used.mem for used in held.values())
        used_cores += sum(used.cores for used in held.values())
        used_cards += sum(used.slots for used in held.values())
    counts = [_smallest(f"{form}.{config.count_name}", namespace, quotas) for form in ("limits", "requests")]
    return Quota(
        mem_limit=None if mem_limit is None else mem_limit * factor,
        cores_limit=_smallest(f"limits.{config.cores_name}", namespace, quotas),
        used_mem=used_mem,
        used_cores=used_cores,
        count_limit=min((count for count in counts if count is not None), default=None),
        used_cards=used_cards,
    )


def _smallest(key: str, namespace: str, quotas: list[Object]) -> int | None:
    limits = []
    for quota in quotas:
        hard = quota.get("spec", {}).get("hard") or {}
        value = exact_int(hard[key]) if namespace_of(quota) == namespace and key in hard else None
        if value is not None:
            limits.append(value)
    return min(limits, default=None)
