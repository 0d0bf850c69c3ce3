"""The label `hami.io/scheduler-role` on our own pod: the Service of `/filter` and `/bind` selects the leader by it.

Each replica labels itself only; one that dies drops out of the Service by its readiness (spec/scheduler 2.1, 6.5).
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from hami.core.errors import ApiError, TransportError
from hami.core.keys import ROLE_FOLLOWER, ROLE_LEADER, SCHEDULER_ROLE_LABEL
from hami.core.objects import Pod
from hami.kube.backoff import Backoff
from hami.kube.writer import KubeWriter

_RETRY_CAP_S: Final = 30.0
_PAUSE_S: Final = 5.0
"""Between two writes: whoever takes the label away each time is not answered at the speed of the API server."""

log = structlog.get_logger(__name__)


class RoleLabel:
    """Keeps the label of one pod. Failures are logged and tried again; they never end the process."""

    def __init__(
        self, writer: KubeWriter, namespace: str, pod: str, *, first_retry_s: float = 0.5, pause_s: float = _PAUSE_S
    ) -> None:
        self._writer = writer
        self._namespace = namespace
        self._pod = pod
        self._backoff = Backoff(first_retry_s, _RETRY_CAP_S)
        self._pause_s = pause_s
        self._role = ""
        self._seen_wrong = False
        self._news = asyncio.Event()
        self._changed = asyncio.Event()

    def set(self, leads: bool) -> None:
        """From now on the pod is to carry this role."""
        self._role = ROLE_LEADER if leads else ROLE_FOLLOWER
        self._changed.set()
        self._news.set()

    def saw(self, pod: Pod) -> None:
        """A pod as the watch has it: where it is ours and somebody took the label away, it is written again."""
        meta = pod.metadata
        if meta.name != self._pod or meta.namespace != self._namespace or not self._role:
            return
        if pod.labels.get(SCHEDULER_ROLE_LABEL) != self._role:
            self._seen_wrong = True
            self._news.set()

    async def run(self) -> None:
        """Writes until cancelled."""
        pause_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            if self._seen_wrong:
                await self._rest()
            self._changed.clear()
            self._seen_wrong = False
            pause_s = await self._write(self._role)

    async def _rest(self) -> None:
        """Ends at once where the role itself changes."""
        try:
            async with asyncio.timeout(self._pause_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _write(self, role: str) -> float | None:
        """Seconds until the next try; None when it is done."""
        try:
            await self._writer.patch_pod_annotations(
                self._namespace, self._pod, {}, uid="", labels={SCHEDULER_ROLE_LABEL: role}
            )
        except (ApiError, TransportError) as error:
            log.warning("own pod not labelled", pod=f"{self._namespace}/{self._pod}", role=role, why=str(error))
            return self._backoff.next_s()
        self._backoff.reset()
        return None
