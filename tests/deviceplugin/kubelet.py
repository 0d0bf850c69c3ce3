"""A kubelet as far as a device plugin sees it: the registration socket, and the calls that kubelet makes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as rpc


class FakeKubelet(rpc.RegistrationServicer):
    """Serves `kubelet.sock` in `folder`; dials each plugin that registers and follows its device list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[pb.RegisterRequest] = []
        self.lists: list[list[pb.Device]] = []
        self.refusals: list[grpc.StatusCode] = []
        """Why device lists ended before their end."""
        self._server: grpc.aio.Server | None = None
        self.by_resource: dict[str, list[pb.Device]] = {}
        """Resource -> its latest list; empty once its plugin is gone."""
        self._plugins: dict[str, tuple[grpc.aio.Channel, asyncio.Task[None]]] = {}
        self._latest = ""

    async def start(self) -> None:
        """As kubelet starts: every file in the folder is removed first, folders stay."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            if not path.is_dir():
                path.unlink()
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix://{self.folder}/kubelet.sock")
        await self._server.start()

    async def stop(self) -> None:
        await self._hang_up()
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def lose_folder(self) -> None:
        """The whole folder is removed and made anew."""
        await self.stop()
        shutil.rmtree(self.folder)
        await self.start()

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.Empty:
        await self._hang_up(request.resource_name)
        self.requests.append(request)
        channel = grpc.aio.insecure_channel(f"unix://{self.folder}/{request.endpoint}")
        self._latest = request.resource_name
        self._plugins[self._latest] = (channel, asyncio.create_task(self._follow(channel, request.resource_name)))
        return pb.Empty()

    @property
    def plugin(self) -> Any:
        """The plugin that registered last."""
        return self.plugin_of(self._latest)

    def plugin_of(self, resource: str) -> Any:
        assert resource in self._plugins, f"no plugin has registered {resource}"
        return rpc.DevicePluginStub(self._plugins[resource][0])  # type: ignore[no-untyped-call]

    def devices_of(self, resource: str) -> dict[str, str]:
        """Id -> health, as of the latest list."""
        return {device.ID: device.health for device in self.by_resource.get(resource, [])}

    @property
    def devices(self) -> dict[str, str]:
        """Id -> health, as of the latest list."""
        return {device.ID: device.health for device in self.lists[-1]} if self.lists else {}

    async def allocate(self, *containers: Sequence[str], resource: str = "") -> pb.AllocateResponse:
        requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        plugin = self.plugin_of(resource or self._latest)
        answer: pb.AllocateResponse = await plugin.Allocate(pb.AllocateRequest(container_requests=requests))
        return answer

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        answer = await self.plugin.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
        return list(answer.container_responses[0].deviceIDs)

    async def _follow(self, channel: grpc.aio.Channel, resource: str) -> None:
        stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        try:
            async for response in stub.ListAndWatch(pb.Empty()):
                self.lists.append(list(response.devices))
                self.by_resource[resource] = list(response.devices)
        except grpc.aio.AioRpcError as error:
            self.refusals.append(error.code())
        self.by_resource[resource] = []

    async def _hang_up(self, *resources: str) -> None:
        for resource in resources or list(self._plugins):
            channel, watch = self._plugins.pop(resource, (None, None))
            if watch is not None:
                watch.cancel()
                await asyncio.gather(watch, return_exceptions=True)
            if channel is not None:
                await channel.close()
