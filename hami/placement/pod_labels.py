"""The label `hami.io/vgpu-node` on pods that another release's plugin has served (design 3; spec/scheduler 2.1).

Our plugin sets it in the PATCH that ends the hand-off, and upstream's scheduler in filter; upstream's plugin does not.
So a pod that reaches phase success without it gets it here. It helps people and upstream's monitor; nothing waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog

from hami.core import keys
from hami.core.errors import ApiError, TransportError
from hami.core.objects import Pod
from hami.placement.ports import ClusterWriter

_MOST_WATCHED: Final = 20_000

log = structlog.get_logger(__name__)


class PodLabels:
    """Watches hand-offs; `leads` says whether this replica writes."""

    def __init__(self, writer: ClusterWriter, leads: Callable[[], bool]) -> None:
        self._writer = writer
        self._leads = leads
        self._allocating: dict[str, None] = {}
        self._work: deque[Pod] = deque(maxlen=_MOST_WATCHED)
        self._news = asyncio.Event()

    def on_pod(self, pod: Pod) -> None:
        """A pod was added or changed."""
        phase = pod.annotations.get(keys.BIND_PHASE) if pod.metadata.annotations else None
        uid = pod.metadata.uid
        if phase == keys.PHASE_ALLOCATING and pod.spec.node_name:
            if len(self._allocating) >= _MOST_WATCHED:
                del self._allocating[next(iter(self._allocating))]
            self._allocating[uid] = None
        elif uid in self._allocating:
            del self._allocating[uid]
            if phase == keys.PHASE_SUCCESS and _lacks_label(pod) and self._leads():
                self._work.append(pod)
                self._news.set()

    def on_pod_deleted(self, uid: str) -> None:
        self._allocating.pop(uid, None)

    async def run(self) -> None:
        """Writes until cancelled. A failure is logged; the pod does without."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._work:
                await self._write(self._work.popleft())

    async def _write(self, pod: Pod) -> None:
        meta = pod.metadata
        labels = {keys.VGPU_NODE: pod.spec.node_name}
        try:
            await self._writer.patch_pod_annotations(meta.namespace, meta.name, {}, uid=meta.uid, labels=labels)
        except (ApiError, TransportError) as error:
            log.info("pod not labelled", pod=pod.key, label=keys.VGPU_NODE, why=str(error))


def _lacks_label(pod: Pod) -> bool:
    node = pod.spec.node_name
    return keys.VGPU_NODE not in pod.labels and 0 < len(node) <= keys.MAX_LABEL_VALUE_CHARS
