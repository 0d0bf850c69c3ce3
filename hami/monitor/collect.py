"""Clears away folders of containers whose pod is gone (spec/node 6.2).

A folder goes when it has been without a pod for the grace period, is itself that old, no living process holds its
region, and one live read of the node's pods agrees: a watch that lags must not cost a running container its limits.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

import structlog

from hami.core.errors import ApiError, TransportError
from hami.core.objects import Pod
from hami.monitor import regions
from hami.shim.layout import RegionError
from hami.vendors.nvidia.folders import CONTAINERS, LIMITS

log = structlog.get_logger(__name__)

ListPods = Callable[[], Awaitable[list[Pod]]]


class Collector:
    """Remembers since when a folder has had no pod. `list_pods` reads this node's pods from the API server."""

    def __init__(self, vgpu_dir: Path, grace_s: float, list_pods: ListPods) -> None:
        self._vgpu_dir = vgpu_dir
        self._grace_s = grace_s
        self._list_pods = list_pods
        self._since_s: dict[str, float] = {}
        self.collected = 0

    async def collect(self, strangers: Collection[str]) -> frozenset[str]:
        """Takes the folders without a pod at this look; returns those that were removed."""
        now_s = time.monotonic()
        self._since_s = {name: self._since_s.get(name, now_s) for name in strangers}
        waited = [name for name, since_s in self._since_s.items() if now_s - since_s >= self._grace_s]
        due = [name for name in waited if await asyncio.to_thread(self._is_dead, name)]
        if not due:
            return frozenset()
        try:
            alive = {pod.metadata.uid for pod in await self._list_pods()}
        except (ApiError, TransportError) as error:
            log.warning("container folders not collected", why=str(error))
            return frozenset()
        gone = frozenset(name for name in due if name.partition("_")[0] not in alive)
        if gone:
            await asyncio.to_thread(self._remove, gone)
            self.collected += len(gone)
            log.info("container folders removed", folders=sorted(gone))
        return gone

    def _is_dead(self, name: str) -> bool:
        try:
            age_s = time.time() - (self._vgpu_dir / CONTAINERS / name).stat().st_mtime
        except OSError:
            return False
        # A time in the future is the container's doing; then only the time that we saw counts.
        return not 0 <= age_s < self._grace_s and not self._is_held(name)

    def _is_held(self, name: str) -> bool:
        """Whether a living process of our shim holds the region."""
        try:
            path = regions.region_path(self._vgpu_dir, name)
            state = regions.read(path) if path else None
        except (RegionError, OSError):
            return False
        return state is not None and state.ours and bool(state.processes)

    def _remove(self, names: Collection[str]) -> None:
        for name in names:
            shutil.rmtree(self._vgpu_dir / CONTAINERS / name, ignore_errors=True)
            (self._vgpu_dir / LIMITS / name).unlink(missing_ok=True)
