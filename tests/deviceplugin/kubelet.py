"""A kubelet as far as a device plugin sees it: the registration socket, and the calls that kubelet makes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as rpc


class FakeKubelet(rpc.RegistrationServicer):
    """Serves `kubelet.sock` in `folder`; dials each plugin that registers and follows its device list."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[pb.RegisterRequest] = []
        self.lists: list[list[pb.Device]] = []
        self._server: grpc.aio.Server | None = None
        self._channel: grpc.aio.Channel | None = None
        self._watch: asyncio.Task[None] | None = None

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
        await self._hang_up()
        self.requests.append(request)
        self._channel = grpc.aio.insecure_channel(f"unix://{self.folder}/{request.endpoint}")
        self._watch = asyncio.create_task(self._follow(self._channel))
        return pb.Empty()

    @property
    def plugin(self) -> Any:
        assert self._channel is not None, "no plugin has registered"
        return rpc.DevicePluginStub(self._channel)  # type: ignore[no-untyped-call]

    @property
    def devices(self) -> dict[str, str]:
        """Id -> health, as of the latest list."""
        return {device.ID: device.health for device in self.lists[-1]} if self.lists else {}

    async def allocate(self, *containers: Sequence[str]) -> pb.AllocateResponse:
        requests = [pb.ContainerAllocateRequest(devices_ids=ids) for ids in containers]
        answer: pb.AllocateResponse = await self.plugin.Allocate(pb.AllocateRequest(container_requests=requests))
        return answer

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
        )
        answer = await self.plugin.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
        return list(answer.container_responses[0].deviceIDs)

    async def _follow(self, channel: grpc.aio.Channel) -> None:
        stub = rpc.DevicePluginStub(channel)  # type: ignore[no-untyped-call]
        try:
            async for response in stub.ListAndWatch(pb.Empty()):
                self.lists.append(list(response.devices))
        except grpc.aio.AioRpcError:
            # The plugin went away.
            return

    async def _hang_up(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
