"""A toy device plugin and a toy extender: the smallest honest partners for the stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
from aiohttp import ClientSession, web

from hami.proto import deviceplugin_v1beta1_pb2 as pb
from hami.proto import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from hami.sim.scheduler import ExtenderConfig

GPU = "nvidia.com/gpu"


class ToyPlugin(pb_grpc.DevicePluginServicer):  # type: ignore[misc, unused-ignore]
    """Advertises `ids`; Allocate answers with the ids in an environment variable, or with `error`."""

    def __init__(self, directory: Path, ids: list[str], *, prefers: list[str] | None = None, pre_start: bool = False):
        self.directory, self.ids, self.prefers, self.pre_start = directory, ids, prefers, pre_start
        self.unhealthy: set[str] = set()
        self.error = ""
        self.allocated: list[list[str]] = []
        self.pre_started: list[list[str]] = []
        self.must_include: list[list[str]] = []
        self._changed = asyncio.Condition()

    async def start(self) -> None:
        self._server: Any = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        self._server.add_insecure_port(f"unix:{self.directory / 'toy.sock'}")
        await self._server.start()
        async with grpc.aio.insecure_channel(f"unix:{self.directory / 'kubelet.sock'}") as channel:
            request = pb.RegisterRequest(version="v1beta1", endpoint="toy.sock", resource_name=GPU)
            await pb_grpc.RegistrationStub(channel).Register(request)  # type: ignore[no-untyped-call]

    async def stop(self) -> None:
        await self._server.stop(None)

    async def set_unhealthy(self, *ids: str) -> None:
        async with self._changed:
            self.unhealthy = set(ids)
            self._changed.notify_all()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Any) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(
            pre_start_required=self.pre_start, get_preferred_allocation_available=self.prefers is not None
        )

    async def ListAndWatch(self, request: pb.Empty, context: Any) -> AsyncIterator[pb.ListAndWatchResponse]:
        while True:
            yield pb.ListAndWatchResponse(
                devices=[
                    pb.Device(ID=one, health="Unhealthy" if one in self.unhealthy else "Healthy") for one in self.ids
                ]
            )
            async with self._changed:
                await self._changed.wait()

    async def GetPreferredAllocation(self, request: Any, context: Any) -> pb.PreferredAllocationResponse:
        asked = request.container_requests[0]
        self.must_include.append(list(asked.must_include_deviceIDs))
        chosen = [one for one in self.prefers or [] if one in asked.available_deviceIDs][: asked.allocation_size]
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(self, request: Any, context: Any) -> pb.AllocateResponse:
        if self.error:
            await context.abort(grpc.StatusCode.UNKNOWN, self.error)
        ids = list(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        response = pb.ContainerAllocateResponse(
            envs={"TOY_DEVICES": ",".join(ids)},
            mounts=[pb.Mount(container_path="/toy", host_path="/host/toy", read_only=True)],
        )
        return pb.AllocateResponse(container_responses=[response])

    async def PreStartContainer(self, request: Any, context: Any) -> pb.PreStartContainerResponse:
        self.pre_started.append(list(request.devices_ids))
        return pb.PreStartContainerResponse()


class ToyExtender:
    """Lets the first `fits` node through and binds with an annotation; answers can be replaced by the test."""

    def __init__(self, api_url: str) -> None:
        self.api_url = api_url
        self.fits: set[str] = set()
        self.unresolvable: set[str] = set()
        self.filter_error = ""
        self.bind_error = ""
        self.status = 200
        self.delay_s = 0.0
        self.filters: list[dict[str, Any]] = []
        self.binds: list[dict[str, Any]] = []

    async def start(self) -> None:
        app = web.Application()
        app.router.add_post("/filter", self._filter)
        app.router.add_post("/bind", self._bind)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    def config(self, **changes: Any) -> ExtenderConfig:
        return ExtenderConfig(self.url, managed=frozenset({GPU}), ignored=frozenset({GPU}), **changes)

    async def _filter(self, request: web.Request) -> web.Response:
        args = msgspec.json.decode(await request.read())
        self.filters.append(args)
        await asyncio.sleep(self.delay_s)
        if self.filter_error or self.status != 200:
            return web.json_response({"Error": self.filter_error}, status=self.status)
        passed = [name for name in args["NodeNames"] if name in self.fits][:1]
        rest = {name: "1/1 CardInsufficientMemory" for name in args["NodeNames"] if name not in passed}
        never = {name: rest.pop(name) for name in list(rest) if name in self.unresolvable}
        return web.json_response(
            {
                "Nodes": None,
                "NodeNames": passed or None,
                "FailedNodes": None if passed else rest,
                "FailedAndUnresolvableNodes": None if passed else never,
                "Error": "",
            }
        )

    async def _bind(self, request: web.Request) -> web.Response:
        args = msgspec.json.decode(await request.read())
        self.binds.append(args)
        if self.bind_error:
            return web.json_response({"Error": self.bind_error})
        name, namespace = args["PodName"], args["PodNamespace"]
        body = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": args["PodUID"],
                "annotations": {"toy/node": args["Node"]},
            },
            "target": {"kind": "Node", "name": args["Node"]},
        }
        url = f"{self.api_url}/api/v1/namespaces/{namespace}/pods/{name}/binding"
        async with ClientSession() as session, session.post(url, json=body) as answer:
            return web.json_response({"Error": "" if answer.status == 201 else await answer.text()})


def gpu_pod(name: str, count: int = 1, **spec: Any) -> dict[str, Any]:
    """A pod with one container that asks for cards."""
    container = {"name": "main", "image": "example/app:1", "resources": {"limits": {GPU: count}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"schedulerName": "hami-scheduler", "containers": [container], **spec},
    }
