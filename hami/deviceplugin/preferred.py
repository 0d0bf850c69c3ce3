"""GetPreferredAllocation: makes kubelet book the cards that the scheduler chose (spec/node 2.5).

Without it kubelet's checkpoint, pod-resources and everything that reads them name other cards than the container has.
The node's view answers where it can: a preference harms nobody, and Allocate decides anew.
Never an error: an empty answer leaves the choice to kubelet, and Allocate decides (report B107).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import structlog

from hami.core.errors import ApiError, TransportError
from hami.deviceplugin.node_view import Found, NodeView
from hami.deviceplugin.replicas import preferred_ids
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.whose_pod import NobodysCall, find_pod
from hami.kube.writer import KubeWriter
from hami.vendors.nvidia.device import Nvidia

_TIMEOUT_S: Final = 2.0

log = structlog.get_logger(__name__)


class Preferences:
    """Answers for the pod whose Allocate call comes next."""

    def __init__(self, settings: PluginSettings, view: NodeView, writer: KubeWriter) -> None:
        self._settings = settings
        self._view = view
        self._writer = writer
        self._vendor = Nvidia(settings.nvidia)

    async def choose(self, requests: Sequence[Any]) -> list[list[str]]:
        """Ids for each ContainerPreferredAllocationRequest; an empty list where kubelet should choose."""
        empty: list[list[str]] = [[] for _ in requests]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                found = await self._find([each.allocation_size for each in requests])
        except (ApiError, TransportError, TimeoutError) as error:
            log.warning("no preferred cards", why=str(error) or "the API server is slow")
            return empty
        if isinstance(found, NobodysCall):
            return empty
        answers = []
        for request, call in zip(requests, found.calls, strict=True):
            cards = [share.device_id for share in call.shares]
            ids = preferred_ids(
                cards, request.available_deviceIDs, request.must_include_deviceIDs, request.allocation_size
            )
            answers.append(ids or [])
        return answers

    async def _find(self, counts: Sequence[int]) -> Found | NobodysCall:
        seen = self._view.find(counts, self._vendor)
        return seen or await find_pod(self._writer, self._settings.node_name, counts, self._vendor)
