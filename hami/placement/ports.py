"""What placement needs from outside. `hami.kube` and the composition roots implement these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hami.core.objects import Node, Pod


class Clock(Protocol):
    """Time, injected so that decisions stay reproducible."""

    def monotonic_s(self) -> float:
        """Seconds that never go backwards, for time limits."""

    def unix_s(self) -> float:
        """Seconds since the epoch, for annotations and comparisons with API objects."""


class ClusterWriter(Protocol):
    """Reads and writes of the bind protocol (design 3). Each call raises the ApiError family or TransportError."""

    async def get_node(self, name: str) -> Node: ...

    async def get_pod(self, namespace: str, name: str) -> Pod: ...

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        """Consistent read of the pods with spec.nodeName = `node`."""

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str
    ) -> Node:
        """Merge patch; None removes a key. An empty `resource_version` means no precondition."""

    async def patch_pod_annotations(
        self,
        namespace: str,
        name: str,
        annotations: Mapping[str, str | None],
        *,
        uid: str,
        resource_version: str = "",
        labels: Mapping[str, str | None] | None = None,
    ) -> Pod:
        """Merge patch with preconditions; labels in the same write. Another pod of that name is a ConflictError."""

    async def bind(
        self, namespace: str, name: str, *, uid: str, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """POST pods/binding; the API server copies `annotations` onto the pod in the same write."""


class EventSink(Protocol):
    """Records Kubernetes events; never blocks and never fails the caller."""

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None: ...

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None: ...
