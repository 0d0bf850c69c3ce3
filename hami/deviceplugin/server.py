"""The plugin's socket: served from `start` to `stop` (spec/node 2.1)."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc.aio

from hami.core.errors import ConfigError
from hami.deviceplugin.registration import KubeletError, answers, identity
from hami.deviceplugin.servicer import DevicePluginServicer
from hami.deviceplugin.single import AnotherPluginError
from hami.proto import deviceplugin_v1beta1_pb2_grpc as rpc

_MAX_SOCKET_PATH_BYTES: Final = 107
"""Longest path of a unix socket on Linux (unix(7))."""
_STOP_GRACE_S: Final = 2.0


class PluginServer:
    """One gRPC server on one unix socket, as an async context manager.

    Entering removes a stale socket, serves, and proves it by calling itself. Raises AnotherPluginError if somebody
    serves this socket already (NVIDIA's own plugin uses the same name, trap T-25), KubeletError if the folder is not
    there, ConfigError if the path is too long for a socket.
    """

    def __init__(self, socket: Path, servicer: DevicePluginServicer) -> None:
        self._socket = socket
        self._servicer = servicer
        self._server: grpc.aio.Server | None = None
        self._own: object = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            # Nobody calls __aexit__ then; a server left behind would be taken for another plugin's by our next one.
            await self.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        await self._make_room()
        self._servicer.open_streams()
        server = grpc.aio.server()
        rpc.add_DevicePluginServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]
        try:
            server.add_insecure_port(f"unix://{self._socket}")
        except RuntimeError as error:
            raise KubeletError(f"cannot listen on {self._socket}: {error}") from error
        self._server, self._own = server, identity(self._socket)
        starting = asyncio.ensure_future(server.start())
        try:
            await asyncio.shield(starting)
        finally:
            # gRPC's server cannot be stopped any more once its start was cancelled.
            await starting
        if not await answers(self._socket):
            raise KubeletError(f"{self._socket} does not answer after its start")

    async def stop(self) -> None:
        """Ends every call and removes the socket, if it is still ours. The one that replaced it is left alone."""
        server, self._server = self._server, None
        if server is None:
            return
        self._servicer.close_streams()
        replaced = identity(self._socket) not in (None, self._own)
        keep = self._socket.with_name(f".{self._socket.name}.{os.getpid()}")
        if replaced:
            # gRPC removes the path that it listened on, whoever made the file: step aside for that moment.
            self._socket.rename(keep)
        await server.stop(_STOP_GRACE_S)
        if replaced:
            keep.rename(self._socket)
        else:
            self._socket.unlink(missing_ok=True)

    async def _make_room(self) -> None:
        socket = self._socket
        if len(os.fsencode(socket)) > _MAX_SOCKET_PATH_BYTES:
            raise ConfigError(f"{socket}: longer than {_MAX_SOCKET_PATH_BYTES} bytes, which a unix socket cannot be")
        if not await asyncio.to_thread(socket.parent.is_dir):
            raise KubeletError(f"{socket.parent} does not exist: is kubelet's folder elsewhere (--kubelet-dir)?")
        if identity(socket) is None:
            return
        try:
            _, writer = await asyncio.open_unix_connection(socket)
        except OSError:
            await asyncio.to_thread(socket.unlink, missing_ok=True)
            return
        writer.close()
        raise AnotherPluginError(
            f"{socket} is served by another device plugin (NVIDIA's uses the same name). Stop one of the two"
        )
