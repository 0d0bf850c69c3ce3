"""The gRPC face of the plugin: protobuf in, protobuf out (kubelet's device plugin API v1beta1, spec/node 2)."""

# ruff: noqa: N802, ARG002 - names and arguments are the protocol's

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

import grpc
import structlog

from hami.core.container_edits import ContainerEdits
from hami.core.errors import AllocateError
from hami.deviceplugin.board import Board, BoardState
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as rpc

log = structlog.get_logger(__name__)


class Served(Protocol):
    """One resource: what there is of it, which of it kubelet should prefer, what a container gets."""

    @property
    def preferred(self) -> bool:
        """Whether kubelet shall ask which devices to prefer."""

    def devices(self, state: BoardState) -> pb.ListAndWatchResponse:
        """All devices with their health."""

    async def choose(self, requests: Sequence[Any]) -> list[list[str]]:
        """Ids for each ContainerPreferredAllocationRequest; an empty list where kubelet should choose."""

    async def allocate(self, requests: Sequence[Sequence[str]]) -> list[ContainerEdits]:
        """Edits for each container, given kubelet's ids for each. Raises AllocateError."""


class DevicePluginServicer(rpc.DevicePluginServicer):
    """Serves one resource. Method names are those of the protocol."""

    def __init__(self, board: Board, served: Served) -> None:
        self._board = board
        self._served = served
        self._closing = asyncio.Event()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        """The same as at registration."""
        return pb.DevicePluginOptions(
            pre_start_required=False, get_preferred_allocation_available=self._served.preferred
        )

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        """All devices now, and again whenever their list or health changes."""
        sent = None
        version = -1
        while await self._changed_or_closing(version):
            version = self._board.version
            devices = self._served.devices(self._board.state)
            if devices != sent:
                sent = devices
                yield devices

    def open_streams(self) -> None:
        """Lets device lists be followed, from now until `close_streams`."""
        self._closing = asyncio.Event()

    def close_streams(self) -> None:
        """Ends every ListAndWatch, which would otherwise hold up the server's end."""
        self._closing.set()

    async def _changed_or_closing(self, version: int) -> bool:
        changed = asyncio.create_task(self._board.changed_since(version))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({changed, closing}, return_when=asyncio.FIRST_COMPLETED)
            return not closing.done()
        finally:
            changed.cancel()
            closing.cancel()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Any
    ) -> pb.PreferredAllocationResponse:
        """Ids of the cards that the scheduler chose; empty where that is not known (kubelet then chooses)."""
        chosen = await self._served.choose(request.container_requests)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=ids) for ids in chosen]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: Any) -> pb.AllocateResponse:
        """Env, mounts and devices of each container, or FAILED_PRECONDITION with what to do."""
        try:
            edits = await self._served.allocate([list(each.devices_ids) for each in request.container_requests])
        except AllocateError as error:
            log.warning("allocate refused", why=str(error))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise
        return pb.AllocateResponse(container_responses=[to_response(each) for each in edits])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Any
    ) -> pb.PreStartContainerResponse:
        """Nothing to do."""
        return pb.PreStartContainerResponse()


def to_response(edits: ContainerEdits) -> pb.ContainerAllocateResponse:
    """Container edits in kubelet's form."""
    return pb.ContainerAllocateResponse(
        envs=dict(edits.envs),
        mounts=[
            pb.Mount(container_path=each.container_path, host_path=each.host_path, read_only=each.read_only)
            for each in edits.mounts
        ],
        devices=[
            pb.DeviceSpec(container_path=each.container_path, host_path=each.host_path, permissions=each.permissions)
            for each in edits.devices
        ],
        annotations=dict(edits.annotations),
        cdi_devices=[pb.CDIDevice(name=name) for name in edits.cdi_devices],
    )
