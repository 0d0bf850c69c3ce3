"""Takes away tokens that nobody will: left by a scheduler or plugin that died, on nodes where no bind comes by.

Our own binds do without (they judge what is in the way), but kubectl shows such a token, and upstream's scheduler
beside us would let binds fail on it for minutes. Only what the owner's state settles is taken: time decides for tokens
alone that name nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

import structlog

from hami.core import keys
from hami.core.errors import ApiError, DecodeError, NotFoundError, TransportError
from hami.core.objects import Pod
from hami.core.token import Token, TokenAction, judge, parse_token
from hami.obs import metrics
from hami.placement.ports import ClusterWriter
from hami.placement.world import World

PERIOD_S: Final = 60.0

log = structlog.get_logger("hami.tokens")


class TokenSweep:
    """A token counts when it was there, the same, one sweep earlier."""

    def __init__(self, world: World, writer: ClusterWriter, expiry_s: float, leads: Callable[[], bool]) -> None:
        self._world = world
        self._writer = writer
        self._expiry_s = expiry_s
        self._leads = leads
        self._seen: dict[str, str] = {}

    async def run(self, period_s: float = PERIOD_S) -> None:
        """Sweeps until cancelled, while this scheduler leads."""
        while True:
            await asyncio.sleep(period_s)
            try:
                await self.sweep()
            except (ApiError, TransportError) as error:
                log.warning("tokens not looked at", why=str(error))

    async def sweep(self) -> list[str]:
        """One sweep; the nodes whose token was taken away. Raises the ApiError family and TransportError."""
        if not self._leads():
            self._seen = {}
            return []
        records = map(self._world.inventory.get, self._world.inventory.names())
        locks = {record.name: record.lock for record in records if record is not None and record.lock}
        lasting = [name for name, text in locks.items() if self._seen.get(name) == text]
        self._seen = locks
        return [name for name in lasting if await self._take(name, locks[name])]

    async def _take(self, name: str, text: str) -> bool:
        try:
            why = await self._orphaned(name, text)
            if not why:
                return False
            node = await self._writer.get_node(name)
            if node.annotations.get(keys.NODE_LOCK) != text:
                return False
            version = node.metadata.resource_version
            self._world.on_node(await self._writer.patch_node_annotations(name, {keys.NODE_LOCK: None}, version))
        except ApiError as error:
            # Somebody else wrote the node, it is gone, or its owner may not be read: the next sweep looks again.
            log.info("token not taken away", node=name, token=text, why=str(error))
            return False
        metrics.tokens_swept.inc()
        log.warning("token without an owner taken away", node=name, token=text, why=why)
        return True

    async def _orphaned(self, name: str, text: str) -> str:
        """Why the token is nobody's; empty if it may be somebody's. The owner is read live."""
        try:
            token = parse_token(text)
        except DecodeError as error:
            # Seen for a whole period, and no release can read it.
            return error.problem
        owner = await self._owner(token)
        expiry_s = math.inf if token.pod else self._expiry_s
        verdict = judge(token, owner, name, self._world.clock.unix_s(), expiry_s)
        return verdict.why if verdict.action is TokenAction.FREE else ""

    async def _owner(self, token: Token) -> Pod | None:
        if not token.pod:
            return None
        try:
            return await self._writer.get_pod(token.namespace, token.pod)
        except NotFoundError:
            return None
