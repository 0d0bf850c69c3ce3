"""Which resources this node offers, as the board says: each has its own socket, started and ended with it.

A resource without devices is not offered (spec/node 2.2). The layout of MIG devices may change at any time; the shared
cards' resource and that of strategy single have one name and never run at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from hami.deviceplugin import event_reasons
from hami.deviceplugin.board import Board, BoardState
from hami.deviceplugin.endpoint import Endpoint
from hami.deviceplugin.settings import PluginSettings
from hami.placement.ports import EventSink

SHARED: Final = ""
"""Stands for the shared cards among the keys, which are resource names of MIG devices otherwise."""

log = structlog.get_logger(__name__)


class Endpoints:
    """Runs one endpoint for each resource. `registered` is set while there are some and kubelet knows them all."""

    def __init__(
        self,
        settings: PluginSettings,
        board: Board,
        events: EventSink,
        shared: Endpoint,
        make_static: Callable[[str], Endpoint],
        registered: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._board = board
        self._events = events
        self._shared = shared
        self._make_static = make_static
        self._registered = registered
        self._running: dict[str, tuple[Endpoint, asyncio.Task[None]]] = {}
        self._said = ""

    async def run(self) -> None:
        """Follows the board until cancelled. Raises ConfigError for a resource that can never be served."""
        version = -1
        try:
            while True:
                version = await self._board_or_end(version)
                self._say_problem(self._board.state)
                await self._follow(wanted(self._board.state))
        finally:
            await self._follow(())

    async def _board_or_end(self, version: int) -> int:
        """Waits for the board to change; an endpoint that ends raises why."""
        changed = asyncio.ensure_future(self._board.changed_since(version))
        tasks = [task for _, task in self._running.values()]
        try:
            await asyncio.wait({changed, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            return await changed
        finally:
            changed.cancel()

    async def _follow(self, keys: tuple[str, ...]) -> None:
        for key in [each for each in self._running if each not in keys]:
            _, task = self._running.pop(key)
            task.cancel()
            await asyncio.wait({task})
            log.info("resource not offered any more", resource=key or self._settings.nvidia.resource_count_name)
        for key in keys:
            if key not in self._running:
                endpoint = self._shared if key == SHARED else self._make_static(key)
                self._running[key] = (endpoint, asyncio.create_task(endpoint.run(self._publish)))
        self._publish()

    def _publish(self) -> None:
        endpoints = [endpoint for endpoint, _ in self._running.values()]
        if endpoints and all(endpoint.registered.is_set() for endpoint in endpoints):
            self._registered.set()
        else:
            self._registered.clear()

    def _say_problem(self, state: BoardState) -> None:
        if state.strategy_problem and state.strategy_problem != self._said:
            message = f"migstrategy {self._settings.mig_strategy} cannot be served: {state.strategy_problem}"
            log.error(message, node=self._settings.node_name)
            self._events.node_event(
                self._settings.node_name, warning=True, reason=event_reasons.MIG_STRATEGY, message=message
            )
        self._said = state.strategy_problem


def wanted(state: BoardState) -> tuple[str, ...]:
    """Keys of the resources that have devices."""
    return ((SHARED,) if state.cards else ()) + tuple(state.static)
