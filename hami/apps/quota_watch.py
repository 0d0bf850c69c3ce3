"""Keeps placement told about ResourceQuota objects, where this process may read them."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from hami.core.device_type import Refusal
from hami.core.errors import ApiError, TransportError
from hami.core.objects import Pod, ResourceQuota, quota_decoder
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.reflector import EventType, Reflector
from hami.placement.world import World

_RETRY_S: Final = 2.0
_ASK_AGAIN_S: Final = 300.0
"""How often a process without the permission looks whether it has got it."""
_REFUSED: Final = (403, 404)

log = structlog.get_logger("hami.quotas")


class QuotaWatch:
    """`settled` is set once the quotas are known, or once it is certain that they may not be read."""

    def __init__(self, client: ApiClient, world: World) -> None:
        self._client = client
        self._world = world
        self._shapes = world.shapes
        self.settled = asyncio.Event()
        self.reflector = Reflector(client, paths.RESOURCE_QUOTAS, quota_decoder, self._replaced, self._on_quota)

    async def run(self) -> None:
        """Runs until cancelled. A refusal (403) is said once, and everything goes on without quotas."""
        await self._until_allowed()
        await self.reflector.run()

    def advise(self, namespace: str, pod: Pod) -> Refusal | None:
        """`core.admission.QuotaAdvice` from the objects and pods as they are now."""
        if not self._world.quotas.limited(namespace):
            return None
        shape = self._shapes.of(pod)
        if isinstance(shape, Refusal):
            return None
        return self._world.quotas.advise(namespace, shape, slices_possible=self._world.columns.has_mig)

    async def _until_allowed(self) -> None:
        told = False
        while True:
            try:
                await self._client.request("GET", paths.RESOURCE_QUOTAS, params={"limit": "1"})
            except (ApiError, TransportError) as error:
                if not isinstance(error, ApiError) or error.status not in _REFUSED:
                    await asyncio.sleep(_RETRY_S)
                    continue
                if not told:
                    log.warning("resource quotas cannot be read: going on without them", why=str(error))
                told = True
                self.settled.set()
                await asyncio.sleep(_ASK_AGAIN_S)
            else:
                return

    def _replaced(self, quotas: list[ResourceQuota]) -> None:
        if self._world.quotas.replace(quotas):
            self._world.on_quota_changed()
        self.settled.set()

    def _on_quota(self, kind: EventType, quota: ResourceQuota) -> None:
        known = self._world.quotas
        if kind is EventType.DELETED:
            changed = known.remove(quota.metadata.namespace, quota.metadata.name)
        else:
            changed = known.apply(quota)
        if changed:
            self._world.on_quota_changed()
