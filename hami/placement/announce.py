"""The annotations of a decision, and `--patch-in-filter`: they are on the pod before `/filter` answers.

Upstream writes them in filter; programs that read upstream's pods before they are bound may count on it (design 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from hami.core import keys
from hami.core.allocation import encode_allocation
from hami.core.codec import encode_mig_allocations
from hami.core.device_type import Registry
from hami.core.errors import ApiError, ConflictError, NotFoundError, TransportError
from hami.core.objects import Node, Pod
from hami.core.versions import is_older
from hami.placement.answers import FilterAnswer
from hami.placement.claims import Claim, ClaimState
from hami.placement.names import NodeNames
from hami.placement.ports import ClusterWriter
from hami.placement.world import World

_TRIES: Final = 3


def decision_annotations(claim: Claim, registry: Registry, unix_s: float) -> dict[str, str]:
    """What a pod is told of its reservation: node, time, cards to allocate and allocated, MIG slices."""
    assert claim.fit is not None
    mig = {keys.MIG_ALLOCATIONS: encode_mig_allocations(claim.fit.mig)} if claim.fit.mig else {}
    return {
        keys.VGPU_NODE: claim.node,
        keys.VGPU_TIME: str(int(unix_s)),
        **encode_allocation(claim.fit.allocation, registry),
        **mig,
    }


class Filters(Protocol):
    """Decides."""

    async def filter_sliced(self, pod: Pod, names: NodeNames) -> FilterAnswer: ...

    async def simulate(self, pod: Pod, nodes: Iterable[Node], *, all_feasible: bool = False) -> FilterAnswer: ...


class AnnouncingFilters:
    """Decides by `filters`, and writes each fresh reservation to its pod before it answers."""

    def __init__(self, filters: Filters, world: World, writer: ClusterWriter) -> None:
        self._filters = filters
        self._world = world
        self._writer = writer

    async def simulate(self, pod: Pod, nodes: Iterable[Node], *, all_feasible: bool = False) -> FilterAnswer:
        return await self._filters.simulate(pod, nodes, all_feasible=all_feasible)

    async def filter_sliced(self, pod: Pod, names: NodeNames) -> FilterAnswer:
        answer = await self._filters.filter_sliced(pod, names)
        claim = self._world.ledger.get(pod.metadata.uid)
        if answer.node is None or claim is None or claim.state is not ClaimState.RESERVED:
            return answer
        if claim.pinned or self._world.in_flight.writing_node(claim.uid):
            # A bind is under way: a write now would only make the version that its Binding asks for an old one.
            return answer
        problem = await self._announce(claim)
        return FilterAnswer(error=problem) if problem else answer

    async def _announce(self, claim: Claim) -> str:
        """Why the reservation could not be written; it is given back then."""
        claim.announced = True
        try:
            pod = await self._write(claim)
        except (ApiError, TransportError) as error:
            if self._world.ledger.get(claim.uid) is claim:
                self._world.ledger.end_reservation(claim.uid)
                if isinstance(error, NotFoundError):
                    self._world.ledger.forget(claim.uid)
            return f"the allocation of pod {claim.key} could not be written: {error}"
        if not is_older(pod.metadata.resource_version, claim.resource_version):
            claim.resource_version = pod.metadata.resource_version
        return ""

    async def _write(self, claim: Claim) -> Pod:
        """PATCH under the version that is known to be unbound: a late one must not hit a pod that was bound since."""
        version = claim.resource_version
        for number in range(1, _TRIES + 1):
            try:
                return await self._writer.patch_pod_annotations(
                    claim.namespace,
                    claim.name,
                    self._annotations(claim),
                    uid=claim.uid,
                    resource_version=version,
                    labels=_label(claim.node),
                )
            except ConflictError:
                pod = await self._writer.get_pod(claim.namespace, claim.name)
                superseded = self._world.ledger.get(claim.uid) is not claim
                if superseded or number == _TRIES or pod.metadata.uid != claim.uid or pod.spec.node_name:
                    raise
                version = pod.metadata.resource_version
        raise AssertionError("the last try returns or raises")

    def _annotations(self, claim: Claim) -> Mapping[str, str | None]:
        """With what an earlier decision left on the pod taken off (spec/scheduler 11.1, no. 6)."""
        registry = self._world.registry
        old: dict[str, str | None] = {keys.MIG_ALLOCATIONS: None}
        for vendor in registry:
            old |= {vendor.to_allocate_key: None, vendor.allocated_key: None}
        return old | decision_annotations(claim, registry, claim.since_unix_s)


def _label(node: str) -> dict[str, str | None]:
    return {keys.VGPU_NODE: node if len(node) <= keys.MAX_LABEL_VALUE_CHARS else None}
