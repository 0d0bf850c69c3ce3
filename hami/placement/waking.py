"""Wakes refused pods that kube-scheduler would leave waiting (design 3).

kube-scheduler tries refused pods again when it sees a node or pod change. Its watch may be ahead of ours: then it asks
about a pod before we have heard of the room, is refused, and hears nothing more. Of quotas it hears nothing at all.
One write on a node makes it ask again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

import structlog

from hami.core import keys
from hami.core.errors import ApiError, TransportError
from hami.core.objects import Node
from hami.placement.ports import Clock

SETTLE_S: Final = 0.5
"""How long kube-scheduler has to ask again by itself."""
LAG_S: Final = 30.0
"""A pod refused longer before the room came was not overtaken by our watch: kube-scheduler wakes it by itself."""
PAUSE_S: Final = 2.0
"""Between two writes, however many pods wait."""
_MOST_PODS: Final = 20_000

log = structlog.get_logger("hami.placement.waking")


class NodeWriter(Protocol):
    """The one write that wakes."""

    async def patch_node_annotations(
        self, name: str, annotations: Mapping[str, str | None], resource_version: str
    ) -> Node: ...


class Waking:
    """Remembers who was refused when, and where room came since. Feed it from the loop that decides."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refused: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._unseen: tuple[str, float] | None = None
        self._news = asyncio.Event()

    def refused(self, uid: str) -> None:
        """No node took the pod just now."""
        self.placed(uid)
        self._refused[uid] = self._clock.monotonic_s()
        if len(self._refused) > _MOST_PODS:
            del self._refused[next(iter(self._refused))]

    def placed(self, uid: str) -> None:
        """The pod waits no more."""
        self._refused.pop(uid, None)

    def changed(self) -> None:
        """A node or a pod changed: worth a look while pods wait."""
        if self._refused:
            self._news.set()

    def room(self, node: str) -> None:
        """The node may take more than before, by a change that kube-scheduler sees too."""
        if self._refused:
            self._seen[node] = self._clock.monotonic_s()
            self._news.set()

    def unseen_room(self, node: str) -> None:
        """Pods may fit by something that kube-scheduler does not watch; `node` is any node to write on."""
        if node and self._refused:
            self._unseen = (node, self._clock.monotonic_s())
            self._news.set()

    def overtaken(self, is_gone: Callable[[str], bool]) -> str:
        """A node whose write would wake a pod that waits though room came; empty if there is none.

        Forgets the room that it looked at.
        """
        seen, self._seen = self._seen, {}
        unseen, self._unseen = self._unseen, None
        self._refused = {uid: at_s for uid, at_s in self._refused.items() if not is_gone(uid)}
        moments = self._refused.values()
        if unseen is not None and any(at_s <= unseen[1] for at_s in moments):
            return unseen[0]
        return next((node for node, came in seen.items() if any(came - LAG_S <= at_s <= came for at_s in moments)), "")

    async def run(
        self, writer: NodeWriter, settle: Callable[[], Awaitable[None]], is_gone: Callable[[str], bool]
    ) -> None:
        """Writes where needed, until cancelled. A failed write is left: plugins write to their nodes anyway."""
        while True:
            await self._news.wait()
            await asyncio.sleep(SETTLE_S)
            self._news.clear()
            await settle()
            node = self.overtaken(is_gone)
            if not node:
                continue
            log.info("waking refused pods", node=node)
            stamp = f"{self._clock.unix_s():.3f}"
            try:
                await writer.patch_node_annotations(node, {keys.ROOM_FREED: stamp}, "")
            except (ApiError, TransportError) as error:
                log.warning("refused pods not woken", node=node, error=str(error))
            await asyncio.sleep(PAUSE_S)
