"""The write that serves a pod: what was served leaves its work list; with nothing left, the phase says success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from hami.core.errors import ApiError, ConflictError, InvalidError, NotFoundError, TransportError
from hami.core.keys import BIND_PHASE, MAX_LABEL_VALUE_CHARS, PHASE_SUCCESS, VGPU_NODE
from hami.core.objects import ObjectMeta, Pod
from hami.deviceplugin.node_view import Found
from hami.kube.writer import KubeWriter
from hami.vendors.nvidia.names import TO_ALLOCATE_KEY

_PATCH_ATTEMPTS: Final = 3

log = structlog.get_logger(__name__)


class WorkList:
    """Erases served segments from the annotations of this node's pods."""

    def __init__(self, writer: KubeWriter, node_name: str) -> None:
        self._writer = writer
        self._labels = {VGPU_NODE: node_name} if len(node_name) <= MAX_LABEL_VALUE_CHARS else None

    async def erase_if_seen_right(self, found: Found) -> bool:
        """Erases what a view says is the call's; False if the pod is not what the view says, and nothing was done.

        A write that nobody answered is looked for: once done, the call has its pod, and no other may be taken for it.
        Raises ApiError and TransportError if that look fails.
        """
        pod = found.pod
        try:
            await self._patch(pod, pod.metadata, _erasure(found))
        except (ConflictError, InvalidError, NotFoundError) as error:
            log.info("decided by a live read", seen=pod.key, why=str(error))
            return False
        except (ApiError, TransportError) as error:
            log.warning("erase not answered", pod=pod.key, why=str(error))
            return await self.shows_erasure(found)
        return True

    async def shows_erasure(self, found: Found) -> bool:
        """Whether the pod is there, with its work list as the erase leaves it. Raises ApiError and TransportError."""
        meta = found.pod.metadata
        fresh = await self._writer.get_pod(meta.namespace, meta.name)
        return fresh.metadata.uid == meta.uid and fresh.annotations.get(TO_ALLOCATE_KEY) == found.calls[-1].rest_text

    async def erase(self, found: Found, more: Mapping[str, str]) -> None:
        """Erases what was read live as long as the work list is still the one that was read, with `more` annotations.

        Kubelet's writes of the pod's status do not matter. Raises ApiError and TransportError.
        """
        pod, meta = found.pod, found.pod.metadata
        for attempt in range(1, _PATCH_ATTEMPTS + 1):
            try:
                await self._patch(pod, meta, {**_erasure(found), **more})
            except ConflictError:
                fresh = await self._writer.get_pod(meta.namespace, meta.name)
                same = fresh.metadata.uid == pod.metadata.uid
                unchanged = fresh.annotations.get(TO_ALLOCATE_KEY) == pod.annotations.get(TO_ALLOCATE_KEY)
                if attempt == _PATCH_ATTEMPTS or not same or not unchanged:
                    raise
                meta = fresh.metadata
            else:
                return

    async def _patch(self, pod: Pod, version: ObjectMeta, annotations: Mapping[str, str]) -> None:
        """Patches the pod if it is still this one, in this version."""
        await self._writer.patch_pod_annotations(
            pod.metadata.namespace,
            pod.metadata.name,
            annotations,
            uid=pod.metadata.uid,
            resource_version=version.resource_version,
            labels=self._labels,
        )


def _erasure(found: Found) -> dict[str, str]:
    last = found.calls[-1]
    phase = {BIND_PHASE: PHASE_SUCCESS} if last.complete else {}
    return {TO_ALLOCATE_KEY: last.rest_text, **phase}
