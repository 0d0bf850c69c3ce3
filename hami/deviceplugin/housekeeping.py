"""Collects folders of containers whose pod is gone (spec/node 2.10, 6.2).

A pod that is deleted from the API may still run for a moment, so a folder has to be without a pod twice in a row,
a period apart, before it goes.
"""

from __future__ import annotations

import asyncio

import structlog

from hami.core.errors import ApiError, TransportError
from hami.deviceplugin.host_files import orphaned_dirs, remove_dirs
from hami.deviceplugin.settings import PluginSettings
from hami.kube.writer import KubeWriter

log = structlog.get_logger(__name__)


class Housekeeping:
    """Looks once a period."""

    def __init__(self, settings: PluginSettings, writer: KubeWriter) -> None:
        self._settings = settings
        self._writer = writer
        self._orphaned: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._settings.cleanup_interval_s)
            try:
                await self.collect()
            except (ApiError, TransportError, OSError) as error:
                log.warning("container folders not collected", why=str(error))

    async def collect(self) -> None:
        """One look. Raises ApiError, TransportError and OSError, and then removes nothing."""
        vgpu_dir = self._settings.vgpu_dir
        # First the folders, then the pods: a folder made in between belongs to a pod that the list has.
        before = await asyncio.to_thread(orphaned_dirs, vgpu_dir, frozenset())
        alive = await self._writer.pod_uids_on_node(self._settings.node_name)
        orphaned = before & await asyncio.to_thread(orphaned_dirs, vgpu_dir, alive)
        gone = orphaned & self._orphaned
        self._orphaned = orphaned - gone
        if gone:
            await asyncio.to_thread(remove_dirs, vgpu_dir, gone)
            log.info("container folders removed", folders=sorted(gone))
