"""hami's own placement, fed with the API objects of a world: what the reference is compared with.

The only module of this package that imports hami; the reference itself must not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from hami.apps.runtime import SystemClock
from hami.core.allocation import encode_allocation
from hami.core.codec import encode_mig_allocations
from hami.core.device_type import Registry
from hami.core.model import Policies
from hami.core.objects import Pod, ResourceQuota, node_decoder, pod_decoder, quota_decoder
from hami.placement.engine import Engine, FilterAnswer, NodeNames
from hami.placement.world import World as Placement
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.placement.complete_lists import nodes_replaced, pods_replaced
from tests.reference.model import Config, Decision, Object
from tests.reference.objects import words
from tests.reference.worlds import World


def registry_of(config: Config) -> Registry:
    """The vendors of a world's device configuration."""
    nvidia = NvidiaConfig(
        resource_count_name=config.count_name,
        resource_memory_name=config.memory_name,
        resource_memory_percentage_name=config.percentage_name,
        resource_core_name=config.cores_name,
        default_memory=config.default_memory,
        default_cores=config.default_cores,
        memory_factor=config.memory_factor,
    )
    return (Nvidia(nvidia),)


def typed_pod(pod: Object) -> Pod:
    return pod_decoder.decode(msgspec.json.encode(pod))


def typed_quotas(quotas: Iterable[Object]) -> list[ResourceQuota]:
    return [quota_decoder.decode(msgspec.json.encode(quota)) for quota in quotas]


def without_numbers(decision: Decision) -> Decision:
    """Ours says the numbers of a quota in an event of its own; the reference has upstream's events only."""
    events = [event for event in decision.events if not event[2].startswith("exceeding resource quota")]
    return dataclasses.replace(decision, events=events)


@dataclasses.dataclass(slots=True)
class Subject:
    """Placement and its engine over one world."""

    placement: Placement
    engine: Engine
    registry: Registry

    @classmethod
    async def of(cls, world: World) -> Subject:
        return await cls.load(world.nodes, world.pods, world.config)

    @classmethod
    async def load(cls, nodes: Iterable[Object], pods: Iterable[Object], config: Config) -> Subject:
        """Takes the objects one by one, so that a large cluster is never held as dictionaries."""
        registry = registry_of(config)
        policies = Policies(node=config.node_policy, device=tuple(words(config.gpu_policy)))
        placement = Placement(registry, policies, SystemClock())
        await nodes_replaced(placement, [node_decoder.decode(msgspec.json.encode(node)) for node in nodes])
        await pods_replaced(placement, [typed_pod(pod) for pod in pods])
        return cls(placement, Engine(placement), registry)

    def decide(self, pod: Object, names: list[str]) -> Decision:
        """The answer of `/filter`, in the reference's terms. A placed pod stays reserved."""
        typed = typed_pod(pod)
        return self.decision(typed, self.engine.filter(typed, NodeNames.of(names)))

    def decision(self, pod: Pod, answer: FilterAnswer) -> Decision:
        events = [("Warning" if warning else "Normal", reason, text) for warning, reason, text in answer.events]
        return Decision(
            answer.node,
            self._annotations(pod.metadata.uid, answer.node),
            dict(answer.failed),
            events,
            passthrough=answer.passthrough,
            error=answer.error,
        )

    def _annotations(self, uid: str, node: str | None) -> dict[str, str]:
        claim: Any = self.placement.ledger.get(uid)
        if node is None or claim is None or claim.fit is None:
            return {}
        written = {"hami.io/vgpu-node": claim.node, **encode_allocation(claim.fit.allocation, self.registry)}
        if claim.fit.mig:
            written["hami.io/vgpu-mig-allocations"] = encode_mig_allocations(claim.fit.mig)
        return written
