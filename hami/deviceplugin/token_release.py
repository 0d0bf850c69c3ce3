"""Gives the node's hand-off token back, if it is this pod's (contract 3.2, report B61, trap T-12).

After the last segment is served the pod's phase says that it needs the token no more, and whoever binds next may take
it. So the release need not hold up kubelet: it runs beside the answer (docs/adr/0014).
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from hami.core.errors import ApiError, ConflictError, NotFoundError, TransportError
from hami.core.keys import NODE_LOCK
from hami.core.objects import Node, Pod
from hami.core.token import token_of
from hami.kube.writer import KubeWriter

_TURNS: Final = 8
"""Turns of the event loop that an answer takes from here to its socket, and some more."""
_TRIES: Final = 6
_FIRST_PAUSE_S: Final = 0.2
"""0.2, 0.4, … 3.2 s: six seconds of a server that does not answer. After that the next bind frees it."""

log = structlog.get_logger(__name__)


async def release_token(writer: KubeWriter, node_name: str, pod: Pod, node: Node | None = None) -> bool:
    """Removes the token from the node if it names `pod`, or nobody (releases up to 2.4.1 wrote no owner).

    `node` is the node as read before, if it was. Only the very token that stood there is removed: the next pod's, also
    one of the same name, is left alone. False if there was nothing of ours to remove. Raises ApiError and
    TransportError.
    """
    current = node or await writer.get_node(node_name)
    token = token_of(current)
    if token is None or token.key not in ("", pod.key):
        return False
    try:
        await writer.drop_node_annotation(node_name, NODE_LOCK, current.annotations[NODE_LOCK])
    except (ConflictError, NotFoundError):
        return False
    return True


class TokenReleases:
    """Releases that run beside the answer to kubelet."""

    def __init__(self, writer: KubeWriter, node_name: str) -> None:
        self._writer = writer
        self._node_name = node_name
        self._running: set[asyncio.Task[None]] = set()
        self._ending = asyncio.Event()

    def begin(self, pod: Pod, node: Node) -> None:
        """Releases the token that `node` was read with, if it is the pod's."""
        task = asyncio.create_task(self._release(pod, node))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def drain(self) -> None:
        """Waits for releases that are under way; what fails now is not tried again."""
        self._ending.set()
        if self._running:
            await asyncio.wait(self._running)

    async def _release(self, pod: Pod, node: Node) -> None:
        for _ in range(_TURNS):
            # The answer to kubelet is on its way first.
            await asyncio.sleep(0)
        for attempt in range(_TRIES):
            try:
                await release_token(self._writer, self._node_name, pod, node)
            except (ApiError, TransportError) as error:
                log.warning("token not released", pod=pod.key, attempt=attempt + 1, why=str(error))
            else:
                return
            if await self._ending_within(_FIRST_PAUSE_S * 2**attempt):
                return

    async def _ending_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return False
        return True
