"""Tells kubelet where our socket is, and sees when kubelet or our socket's folder begins anew (spec/node 2.1, 2.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from hami.core.errors import HamiError
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as rpc

API_VERSION: Final = "v1beta1"
DIAL_TIMEOUT_S: Final = 5.0

SocketIdentity = tuple[int, int, int] | None


class KubeletError(HamiError):
    """kubelet cannot be reached or refuses us; the text says which."""


async def register(kubelet_socket: Path, endpoint: str, resource: str, *, preferred: bool) -> None:
    """Registers the socket `endpoint` (a name in kubelet's folder) for `resource`. Raises KubeletError."""
    request = pb.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=pb.DevicePluginOptions(pre_start_required=False, get_preferred_allocation_available=preferred),
    )
    async with grpc.aio.insecure_channel(f"unix://{kubelet_socket}") as channel:
        try:
            stub = rpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            await stub.Register(request, timeout=DIAL_TIMEOUT_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as error:
            raise KubeletError(f"{kubelet_socket}: {error.code().name}: {error.details()}") from error


async def answers(socket: Path, timeout_s: float = DIAL_TIMEOUT_S) -> bool:
    """Whether somebody serves gRPC on this socket."""
    async with grpc.aio.insecure_channel(f"unix://{socket}") as channel:
        try:
            async with asyncio.timeout(timeout_s):
                await channel.channel_ready()
        except TimeoutError:
            return False
    return True


def identity(path: Path) -> SocketIdentity:
    """Changes when the file is made anew, also where the file system uses an inode number again."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_ctime_ns)


async def wait_until_anew(kubelet_socket: Path, plugin_socket: Path, interval_s: float) -> str:
    """Waits until kubelet's socket was made anew, or ours is gone or another's; says which.

    A kubelet that is only gone is waited for: it cannot be registered with. Looking at two files twice a second costs
    nothing and, unlike a watch on the folder, also sees the folder being replaced.
    """
    kubelet, plugin = identity(kubelet_socket), identity(plugin_socket)
    while True:
        await asyncio.sleep(interval_s)
        now = identity(kubelet_socket)
        if now is not None and now != kubelet:
            return "kubelet's socket was made anew"
        current = identity(plugin_socket)
        if current is None and now is not None:
            return "our socket was removed"
        if current is not None and current != plugin:
            return "our socket was replaced by another device plugin's"
