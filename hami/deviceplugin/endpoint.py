"""One resource at kubelet: its socket served and registered, again and again, until cancelled (spec/node 2.1, 2.3)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import structlog

from hami.core.errors import HamiError
from hami.deviceplugin import event_reasons
from hami.deviceplugin.board import Board
from hami.deviceplugin.registration import KubeletError, register, wait_until_anew
from hami.deviceplugin.server import PluginServer
from hami.deviceplugin.servicer import DevicePluginServicer, Served
from hami.deviceplugin.settings import PluginSettings, socket_of
from hami.deviceplugin.single import AnotherPluginError, NodeLock
from hami.kube.backoff import Backoff
from hami.placement.ports import EventSink

_RETRY_CAP_S: Final = 30.0

log = structlog.get_logger(__name__)


class Endpoint:
    """Serves `resource` as `served` has it. `registered` is set while kubelet knows it."""

    def __init__(
        self,
        settings: PluginSettings,
        board: Board,
        events: EventSink,
        resource: str,
        served: Served,
        prepare: Callable[[], Awaitable[object]],
    ) -> None:
        """`prepare` runs before each registration. Raises OSError where the host is not ready."""
        self._settings = settings
        self._events = events
        self._resource = resource
        self._served = served
        self._prepare = prepare
        self._socket: Path = socket_of(settings.kubelet_dir, resource)
        self._servicer = DevicePluginServicer(board, served)
        self._lock = NodeLock(settings.kubelet_dir, self._socket.stem)
        self._said = ""
        self.registered = asyncio.Event()
        self.generation = 0
        """How often kubelet has registered it."""

    async def run(self, on_change: Callable[[], None]) -> None:
        """Serves until cancelled; `on_change` is called when `registered` changes. Raises ConfigError."""
        backoff = Backoff(0.5, _RETRY_CAP_S)
        try:
            while True:
                try:
                    reason = await self._serve(backoff, on_change)
                except (KubeletError, AnotherPluginError, OSError) as error:
                    self._say_trouble(error)
                    await asyncio.sleep(backoff.next_s())
                else:
                    log.info("starting anew", resource=self._resource, why=reason)
                finally:
                    self.registered.clear()
                    on_change()
        finally:
            self._lock.release()

    async def _serve(self, backoff: Backoff, on_change: Callable[[], None]) -> str:
        """Serves and registers; returns why it has to be done again."""
        settings = self._settings
        # Taken again each time: the folder may have been made anew, with the lock's file gone.
        self._lock.acquire()
        await self._prepare()
        async with PluginServer(self._socket, self._servicer):
            preferred = self._served.preferred
            await register(settings.kubelet_socket, self._socket.name, self._resource, preferred=preferred)
            self.generation += 1
            self.registered.set()
            on_change()
            self._said = ""
            backoff.reset()
            log.info("registered with kubelet", resource=self._resource)
            return await wait_until_anew(settings.kubelet_socket, self._socket, settings.watch_interval_s)

    def _say_trouble(self, error: HamiError | OSError) -> None:
        message = str(error)
        log.warning("not registered with kubelet, will retry", resource=self._resource, why=message)
        if isinstance(error, AnotherPluginError) and message != self._said:
            self._events.node_event(
                self._settings.node_name, warning=True, reason=event_reasons.ANOTHER_PLUGIN, message=message
            )
        self._said = message
