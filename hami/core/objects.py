"""Typed views of the Kubernetes objects that we read: only the fields we use, decoded straight from bytes.

Unknown fields are skipped, so the views are small (managedFields never enter memory) and never written back:
every write is a patch. Source: spec/ecosystem 2.2.
"""

from __future__ import annotations

import msgspec

Quantity = str | int | float
"""A Kubernetes quantity as it stands in JSON; `core.units` reads it."""


class _View(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What JSON gives has no cycles: the collector need not look at it (spec/performance 2.5)."""


class ObjectMeta(_View, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None
    generate_name: str = ""


class ValueFrom(_View, frozen=True, rename="camel"):
    """Values of variables come from elsewhere; from where does not matter here."""


class EnvVar(_View, frozen=True, rename="camel"):
    name: str = ""
    value: str = ""
    value_from: ValueFrom | None = None


class ClaimName(_View, frozen=True, rename="camel"):
    """One of the pod's resource claims, by name; what it allocates does not matter here."""

    name: str = ""


class ResourceRequirements(_View, frozen=True, rename="camel"):
    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: tuple[ClaimName, ...] | None = None


class SecurityContext(_View, frozen=True, rename="camel"):
    privileged: bool | None = None


class Container(_View, frozen=True, rename="camel"):
    name: str = ""
    resources: ResourceRequirements | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[ValueFrom, ...] | None = None
    security_context: SecurityContext | None = None
    restart_policy: str | None = None

    @property
    def limits(self) -> dict[str, Quantity]:
        return (self.resources and self.resources.limits) or {}

    @property
    def requests(self) -> dict[str, Quantity]:
        return (self.resources and self.resources.requests) or {}


class PodSpec(_View, frozen=True, rename="camel"):
    scheduler_name: str = ""
    node_name: str = ""
    runtime_class_name: str | None = None
    priority: int | None = None
    init_containers: tuple[Container, ...] | None = None
    containers: tuple[Container, ...] | None = None


class PodCondition(_View, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None
    last_transition_time: str | None = None
    last_probe_time: str | None = None


class TerminatedState(_View, frozen=True, rename="camel"):
    exit_code: int = 0


class ContainerState(_View, frozen=True, rename="camel"):
    terminated: TerminatedState | None = None


class ContainerStatus(_View, frozen=True, rename="camel"):
    name: str = ""
    state: ContainerState | None = None


class PodStatus(_View, frozen=True, rename="camel"):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    conditions: tuple[PodCondition, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(_View, frozen=True, rename="camel"):
    """A pod, as far as hami reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def containers(self) -> tuple[Container, ...]:
        """Every container in annotation order: init containers first, then app containers."""
        return (self.spec.init_containers or ()) + (self.spec.containers or ())

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class NodeSpec(_View, frozen=True, rename="camel"):
    unschedulable: bool = False


class NodeCondition(_View, frozen=True, rename="camel"):
    type: str = ""
    status: str = ""


class NodeStatus(_View, frozen=True, rename="camel"):
    allocatable: dict[str, Quantity] | None = None
    conditions: tuple[NodeCondition, ...] | None = None


class Node(_View, frozen=True, rename="camel"):
    """A node, as far as hami reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def lease_expired(self) -> bool:
        """Kubernetes has not heard of the node's kubelet for too long: it then calls Ready unknown."""
        return any(each.type == "Ready" and each.status == "Unknown" for each in self.status.conditions or ())


class ResourceQuotaSpec(_View, frozen=True, rename="camel"):
    hard: dict[str, Quantity] | None = None


class ResourceQuota(_View, frozen=True, rename="camel"):
    """A namespace's quota, as far as hami reads it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceQuotaSpec = ResourceQuotaSpec()

    @property
    def hard(self) -> dict[str, Quantity]:
        return self.spec.hard or {}


class _BareContainer(Container, frozen=True, rename="camel"):
    env: tuple[EnvVar, ...] | None = msgspec.field(default=None, name="-")
    """Never in the JSON under this name, so variables are skipped."""


class _BarePodSpec(PodSpec, frozen=True, rename="camel"):
    init_containers: tuple[_BareContainer, ...] | None = None
    containers: tuple[_BareContainer, ...] | None = None


class BarePod(Pod, frozen=True, rename="camel"):
    """A pod without the variables of its containers: they are most of its bytes, and only admission reads them."""

    spec: _BarePodSpec = _BarePodSpec()


bare_pod_decoder: msgspec.json.Decoder[Pod] = msgspec.json.Decoder(BarePod)
pod_decoder = msgspec.json.Decoder(Pod)
node_decoder = msgspec.json.Decoder(Node)
quota_decoder = msgspec.json.Decoder(ResourceQuota)
