"""The resource of cards that pods get shares of, or in mode mig instances: chosen by the scheduler, served by pod."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hami.core.container_edits import ContainerEdits
from hami.deviceplugin.allocate import Allocator
from hami.deviceplugin.board import BoardState
from hami.deviceplugin.preferred import Preferences
from hami.deviceplugin.replicas import device_list
from hami.deviceplugin.settings import PluginSettings
from hami.proto import deviceplugin_v1beta1_pb2 as pb


class SharedCards:
    """Implements `servicer.Served`."""

    def __init__(self, settings: PluginSettings, allocator: Allocator, preferences: Preferences) -> None:
        self._settings = settings
        self._allocator = allocator
        self._preferences = preferences

    @property
    def preferred(self) -> bool:
        return self._settings.preferred_allocation

    def devices(self, state: BoardState) -> pb.ListAndWatchResponse:
        return device_list(state, numa=self._settings.nvidia.enable_numa_topology)

    async def choose(self, requests: Sequence[Any]) -> list[list[str]]:
        return await self._preferences.choose(requests)

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        return await self._allocator.allocate(requests)
