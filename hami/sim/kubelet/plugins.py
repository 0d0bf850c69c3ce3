"""The gRPC side of the device manager: the Registration server and one client per registered plugin.

Source: pkg/kubelet/cm/devicemanager/plugin/v1beta1. As there, the options in the Register request are ignored and
asked for by GetDevicePluginOptions, inside Register.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from hami.core.errors import HamiError
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as pb_grpc

SOCKET_NAME: Final = "kubelet.sock"
VERSION: Final = "v1beta1"
_DIAL_TIMEOUT_S: Final = 10.0
_GO_CODES: Final = {grpc.StatusCode.CANCELLED: "Canceled", grpc.StatusCode.OK: "OK"}


class PluginCallError(HamiError):
    """A device plugin's answer was an error; the text is Go's (`rpc error: code = … desc = …`)."""


def _go_error(error: grpc.aio.AioRpcError) -> PluginCallError:
    code = error.code()
    name = _GO_CODES.get(code) or "".join(part.capitalize() for part in code.name.split("_"))
    return PluginCallError(f"rpc error: code = {name} desc = {error.details()}")


@contextlib.contextmanager
def _as_call_error() -> Iterator[None]:
    """Failures of a call as PluginCallError, also when the plugin vanished and our channel was closed under the call.

    gRPC then cancels the awaiting call without anyone having cancelled this task.
    """
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _go_error(error) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise PluginCallError("rpc error: code = Canceled desc = grpc: the client connection is closing") from None


class PluginClient:
    """kubelet's connection to one plugin's socket."""

    def __init__(self, resource: str, socket: Path) -> None:
        self.resource, self._socket = resource, socket
        self.options = pb.DevicePluginOptions()
        # Environment proxies must not be asked about a unix socket; the authority is what Go's kubelet sends.
        options = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=options)
        self._stub: Any = pb_grpc.DevicePluginStub(self._channel)  # type: ignore[no-untyped-call]

    async def connect(self) -> None:
        """Raises PluginCallError where the plugin does not serve or knows no options."""
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT_S):
                await self._channel.channel_ready()
        except TimeoutError as error:
            raise PluginCallError("failed to dial device plugin: context deadline exceeded") from error
        try:
            self.options = await self._stub.GetDevicePluginOptions(pb.Empty())
        except grpc.aio.AioRpcError as error:
            raise PluginCallError(f"failed to get device plugin options: {_go_error(error)}") from error

    async def follow(self, receive: Callable[[Sequence[pb.Device]], None]) -> None:
        """Hand on every ListAndWatch answer; returns when the stream ends, for whatever reason."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            async for answer in self._stub.ListAndWatch(pb.Empty()):
                receive(answer.devices)

    async def preferred(self, available: list[str], must_include: list[str], size: int) -> list[str]:
        """GetPreferredAllocation, nothing where the plugin does not offer it. Raises PluginCallError."""
        if not self.options.get_preferred_allocation_available:
            return []
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must_include, allocation_size=size
        )
        try:
            with _as_call_error():
                answer = await self._stub.GetPreferredAllocation(
                    pb.PreferredAllocationRequest(container_requests=[request])
                )
        except PluginCallError as error:
            text = f"device plugin GetPreferredAllocation rpc failed with err: {error}"
            raise PluginCallError(text) from error
        return list(answer.container_responses[0].deviceIDs) if answer.container_responses else []

    async def allocate(self, device_ids: list[str]) -> pb.ContainerAllocateResponse:
        """Allocate for one container. Raises PluginCallError."""
        request = pb.ContainerAllocateRequest(devices_ids=device_ids)
        with _as_call_error():
            answer = await self._stub.Allocate(pb.AllocateRequest(container_requests=[request]))
        if not answer.container_responses:
            raise PluginCallError(f"no containers return in allocation response {answer}")
        response: pb.ContainerAllocateResponse = answer.container_responses[0]
        return response

    async def pre_start(self, device_ids: list[str]) -> None:
        """PreStartContainer where the plugin requires it. Raises PluginCallError."""
        if not self.options.pre_start_required:
            return
        try:
            with _as_call_error():
                await self._stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=device_ids))
        except PluginCallError as error:
            raise PluginCallError(f"device plugin PreStartContainer rpc failed with err: {error}") from error

    async def close(self) -> None:
        await self._channel.close()


class PluginEvents:
    """What the device manager wants to know; a base class to override."""

    def connected(self, client: PluginClient) -> None:
        """A plugin registered and answered."""

    def listed(self, client: PluginClient, devices: Sequence[pb.Device]) -> None:
        """The plugin sent its device list."""

    def disconnected(self, client: PluginClient) -> None:
        """The plugin's stream ended and no newer registration took its place."""


class RegistrationServer:
    """kubelet.sock in the device-plugin directory. Starting it clears the directory of all but the checkpoint."""

    def __init__(self, directory: Path, events: PluginEvents, keep: frozenset[str]) -> None:
        self.directory, self._events, self._keep = directory, events, keep
        self.clients: dict[str, PluginClient] = {}
        self._followers: set[asyncio.Task[None]] = set()
        self._server: Any = None

    async def start(self) -> None:
        """Raises OSError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for path in self.directory.iterdir():
            if path.name not in self._keep and not path.is_dir():
                path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(_Registration(self), self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self.directory / SOCKET_NAME}")
        await self._server.start()

    async def stop(self) -> None:
        """Close the socket and every connection to a plugin."""
        for task in list(self._followers):
            task.cancel()
        await asyncio.gather(*self._followers, return_exceptions=True)
        clients, self.clients = list(self.clients.values()), {}
        for client in clients:
            self._events.disconnected(client)
            await client.close()
        if self._server is not None:
            await self._server.stop(None)
            self._server = None
        (self.directory / SOCKET_NAME).unlink(missing_ok=True)

    async def register(self, request: pb.RegisterRequest) -> str:
        """Connect back to the plugin; returns the reason of a refusal, or nothing."""
        if request.version != VERSION:
            return f'"{request.version}" is not a supported device plugin API version. Supported versions: [{VERSION}]'
        if "/" not in request.resource_name or request.resource_name.startswith("kubernetes.io/"):
            return f"the ResourceName {request.resource_name} is invalid"
        client = PluginClient(request.resource_name, self.directory / request.endpoint)
        try:
            await client.connect()
        except PluginCallError as error:
            await client.close()
            return str(error)
        old, self.clients[client.resource] = self.clients.get(client.resource), client
        if old is not None:
            await old.close()
        self._events.connected(client)
        task = asyncio.create_task(self._follow(client))
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)
        return ""

    async def _follow(self, client: PluginClient) -> None:
        await client.follow(lambda devices: self._listed(client, devices))
        if self.clients.get(client.resource) is client:
            del self.clients[client.resource]
            self._events.disconnected(client)
            await client.close()

    def _listed(self, client: PluginClient, devices: Sequence[pb.Device]) -> None:
        if self.clients.get(client.resource) is client:
            self._events.listed(client, devices)


class _Registration(pb_grpc.RegistrationServicer):  # type: ignore[misc, unused-ignore]
    def __init__(self, owner: RegistrationServer) -> None:
        self._owner = owner

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:  # noqa: N802 - the wire's name
        refusal = await self._owner.register(request)
        if refusal:
            await context.abort(grpc.StatusCode.UNKNOWN, refusal)
        return pb.Empty()
