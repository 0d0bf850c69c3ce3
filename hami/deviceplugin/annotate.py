"""Keeps the node's annotations: handshake, register, pair scores (design 3 "Registration", spec/node 3).

The register is compared with what is on the node, not with what was written last, so that a deleted or foreign value
is put right (trap T-4). The answer to each PATCH shows the node, so a period costs one request.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from hami.core.codec import encode_pair_scores, encode_register
from hami.core.errors import ApiError, TransportError
from hami.core.objects import Node
from hami.deviceplugin.board import Board, BoardState
from hami.deviceplugin.offer_check import OfferCheck
from hami.deviceplugin.operator_recovery import OperatorRecovery
from hami.deviceplugin.pair_scores import pair_scores
from hami.deviceplugin.registered import registered
from hami.deviceplugin.settings import Heartbeat, PluginSettings
from hami.kube.writer import KubeWriter
from hami.vendors.nvidia.names import HANDSHAKE_KEY, REGISTER_KEY, SCORE_KEY

_RETRY_S: Final = 5.0

log = structlog.get_logger(__name__)


class Annotator:
    """Writes this node's annotations every period, and at once when a card changes."""

    def __init__(
        self,
        settings: PluginSettings,
        board: Board,
        writer: KubeWriter,
        now: Callable[[], datetime.datetime],
        check: OfferCheck,
        recovery: OperatorRecovery,
    ) -> None:
        self._settings = settings
        self._board = board
        self._writer = writer
        self._now = now
        self._check = check
        self._recovery = recovery
        self._seen: Node | None = None
        self._stamp_removed = settings.heartbeat is Heartbeat.ALWAYS

    async def run(self) -> None:
        """Runs until cancelled; a failing API server is tried again in 5 s."""
        while True:
            version = self._board.version
            try:
                await self.report()
                pause_s = self._settings.report_interval_s
            except (ApiError, TransportError) as error:
                log.warning("node annotations not written", node=self._settings.node_name, why=str(error))
                self._seen = None
                pause_s = _RETRY_S
            await self._pause(version, pause_s)

    async def report(self) -> None:
        """Brings the node's annotations up to date. Raises ApiError and TransportError."""
        name = self._settings.node_name
        if self._seen is None or self._settings.heartbeat is Heartbeat.ON_CHANGE:
            self._seen = await self._writer.get_node(name)
        changes = self._differences(self._seen)
        if self._settings.heartbeat is Heartbeat.ALWAYS:
            changes[HANDSHAKE_KEY] = handshake(self._now())
        elif not self._stamp_removed and HANDSHAKE_KEY in self._seen.annotations:
            # An earlier plugin's; nobody would renew it. Later ones are a scheduler's and stay.
            changes[HANDSHAKE_KEY] = None
        if changes:
            self._seen = await self._writer.patch_node_annotations(name, changes)
        self._stamp_removed = True
        changes = self._differences(self._seen)
        if changes:
            # Somebody else had written since our last look.
            self._seen = await self._writer.patch_node_annotations(name, changes)
        self._seen = await self._recovery.observe(self._seen)
        self._check.observe(self._seen, self._board.state)

    def _differences(self, node: Node) -> dict[str, str | None]:
        state = self._board.state
        wanted: dict[str, str | None] = {REGISTER_KEY: self.register_text(state)}
        if self._settings.pair_scores:
            uuids = [card.id for card in registered(state, self._settings)[0]]
            wanted[SCORE_KEY] = encode_pair_scores(pair_scores(uuids, state.pairs))
        return {key: text for key, text in wanted.items() if node.annotations.get(key) != text}

    def register_text(self, state: BoardState) -> str:
        """The register annotation for `state`; no card may be used while another plugin's devices are offered (B94)."""
        devices, _ = registered(state, self._settings)
        if self._check.foreign:
            devices = tuple(msgspec.structs.replace(device, healthy=False) for device in devices)
        return encode_register(devices, self._settings.register_form)

    async def _pause(self, version: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._board.changed_since(version)
        except TimeoutError:
            return


def handshake(now: datetime.datetime) -> str:
    """`Reported <time>` in the form of upstream's language, UTC (spec/node 3.3)."""
    return f"Reported {now.astimezone(datetime.UTC):%Y-%m-%d %H:%M:%S.%f} +0000 UTC"
