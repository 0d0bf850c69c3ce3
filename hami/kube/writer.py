"""The reads and writes of the bind and allocate protocols, over `ApiClient`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

import msgspec

from hami.core.budgets import DisruptionBudget, budget_decoder
from hami.core.errors import ConflictError, InvalidError, TransportError
from hami.core.objects import Node, Pod, node_decoder, pod_decoder
from hami.kube import patches, paths
from hami.kube.client import JSON_PATCH, MERGE_PATCH, ApiClient
from hami.kube.listing import decode_answer, pages
from hami.kube.ratelimit import Lane

T = TypeVar("T")


class _Uid(msgspec.Struct, frozen=True):
    uid: str


class _Identity(msgspec.Struct, frozen=True):
    """Who an object is, whatever else it says."""

    metadata: _Uid


_identity_decoder: Final = msgspec.json.Decoder(_Identity)


class KubeWriter:
    """Implements `hami.placement.ports.ClusterWriter`, and the pod patch with a label that the plugin needs.

    Each call raises the ApiError family or TransportError. After TransportError a write may or may not have happened.
    """

    def __init__(self, client: ApiClient, lane: Lane = Lane.BIND) -> None:
        self._client = client
        self._lane = lane

    async def get_node(self, name: str) -> Node:
        path = paths.node(name)
        return decode_answer(await self._client.request("GET", path, lane=self._lane), node_decoder, path)

    async def get_pod(self, namespace: str, name: str) -> Pod:
        path = paths.pod(namespace, name)
        return decode_answer(await self._client.request("GET", path, lane=self._lane), pod_decoder, path)

    async def list_pods_on_node(self, node: str) -> list[Pod]:
        """Consistent read of the pods with spec.nodeName = `node`.

        All of them: one that cannot be decoded is a TransportError, because what it holds is not known.
        """
        return await self._listed_on(node, pod_decoder)

    async def list_disruption_budgets(self) -> list[DisruptionBudget]:
        """Every PodDisruptionBudget; all or a TransportError, because one that is left out would protect nobody."""
        found: list[DisruptionBudget] = []
        async for page in pages(self._client, paths.DISRUPTION_BUDGETS, budget_decoder, lane=self._lane):
            if page.problems:
                raise TransportError(f"a disruption budget cannot be read: {page.problems[0]}")
            found.extend(page.objects)
        return found

    async def pod_uids_on_node(self, node: str) -> frozenset[str]:
        """Consistent read of who is on `node`, pods included that are otherwise not understood."""
        return frozenset(each.metadata.uid for each in await self._listed_on(node, _identity_decoder))

    async def _listed_on(self, node: str, decoder: msgspec.json.Decoder[T]) -> list[T]:
        found: list[T] = []
        query = {"fieldSelector": f"spec.nodeName={node}"}
        async for page in pages(self._client, paths.PODS, decoder, query, lane=self._lane):
            if page.problems:
                raise TransportError(f"a pod on node {node} cannot be read: {page.problems[0]}")
            found.extend(page.objects)
        return found

    async def pod_pages(self) -> AsyncIterator[list[Pod]]:
        """Every pod of the cluster, a page at a time, from a consistent list."""
        async for page in pages(self._client, paths.PODS, pod_decoder, lane=self._lane):
            yield page.objects

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str = ""
    ) -> Node:
        """Merge patch; None removes a key. An empty `resource_version` means no precondition."""
        body = patches.metadata_patch(annotations=annotations, resource_version=resource_version)
        path = paths.node(name)
        return decode_answer(await self._patch(path, body, repeatable=not resource_version), node_decoder, path)

    async def drop_node_annotation(self, name: str, key: str, expected: str) -> Node:
        """Removes an annotation that has the value `expected`, whatever else is written to the node meanwhile.

        ConflictError if it has another value, or is not there.
        """
        body = patches.annotation_dropped(key, expected)
        path = paths.node(name)
        try:
            answer = await self._client.request("PATCH", path, body, JSON_PATCH, lane=self._lane, idempotent=True)
        except InvalidError as error:
            raise ConflictError(409, "Conflict", f"node {name}: annotation {key} is not {expected!r}") from error
        return decode_answer(answer, node_decoder, path)

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
        """Merge patch with preconditions, labels in the same write. Another pod of that name is a ConflictError."""
        body = patches.metadata_patch(
            annotations=annotations, labels=labels, uid=uid, resource_version=resource_version
        )
        path = paths.pod(namespace, name)
        try:
            answer = await self._patch(path, body, repeatable=not resource_version)
        except InvalidError as error:
            # kube-apiserver 1.34 calls a patch of another uid invalid ("metadata.uid: ... field is immutable").
            if uid and "metadata.uid" in error.message:
                raise ConflictError(409, "Conflict", error.message) from error
            raise
        return decode_answer(answer, pod_decoder, path)

    async def bind(
        self, namespace: str, name: str, *, uid: str, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """POST pods/binding; the API server copies `annotations` onto the pod in the same write."""
        body = patches.binding(
            namespace, name, uid=uid, resource_version=resource_version, node=node, annotations=annotations
        )
        await self._client.request("POST", paths.binding(namespace, name), body, lane=Lane.BINDING)

    async def _patch(self, path: str, body: bytes, *, repeatable: bool) -> bytes:
        """A patch under resourceVersion is sent once: repeated, it could fail on its own first success."""
        return await self._client.request("PATCH", path, body, MERGE_PATCH, lane=self._lane, idempotent=repeatable)
