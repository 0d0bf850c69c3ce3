"""2,500 random gRPC messages and 2,500 preferences over the wire (`make soak`: ten times that): answered or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.core.objects import Pod
from hami.deviceplugin.server import PluginServer
from hami.deviceplugin.servicer import DevicePluginServicer
from hami.proto import deviceplugin_v1beta1_pb2 as pb
from tests.deviceplugin.fuzz_pods import ids, odd_ids, pod, requests
from tests.deviceplugin.fuzz_world import World, cases


@pytest.fixture(scope="module")
def channel(world: World) -> Iterator[grpc.aio.Channel]:
    path = world.settings.kubelet_dir / "p.sock"
    server = PluginServer(path, DevicePluginServicer(world.board, world.served()))
    world.loop.run_until_complete(server.start())
    made = world.loop.run_until_complete(_dial(path))
    yield made
    world.loop.run_until_complete(made.close())
    world.loop.run_until_complete(server.stop())


async def _dial(path: Path) -> grpc.aio.Channel:
    made = grpc.aio.insecure_channel(f"unix://{path}")
    await made.channel_ready()
    return made


def ask(world: World, channel: grpc.aio.Channel, method: str, body: bytes) -> tuple[grpc.StatusCode, bytes | str]:
    async def call() -> tuple[grpc.StatusCode, bytes | str]:
        try:
            asked: Any = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
            return grpc.StatusCode.OK, await asked(body)
        except grpc.aio.AioRpcError as error:
            return error.code(), str(error.details())

    return world.loop.run_until_complete(asyncio.wait_for(call(), 60))


messages = st.one_of(
    st.binary(max_size=60),
    requests.map(
        lambda asked: pb.AllocateRequest(
            container_requests=[pb.ContainerAllocateRequest(devices_ids=_sendable(ids)) for ids in asked]
        ).SerializeToString()
    ),
)


def _sendable(texts: list[str]) -> list[str]:
    return [text.encode("utf-8", "replace").decode() for text in texts]


@cases(2500)
@given(waiting=pod("p0"), body=messages)
def test_any_message_is_answered_or_refused(world: World, channel: grpc.aio.Channel, waiting: Pod, body: bytes) -> None:
    world.put([waiting], None)
    status, answer = ask(world, channel, "Allocate", body)
    if status is grpc.StatusCode.OK:
        assert isinstance(answer, bytes)
        pb.AllocateResponse.FromString(answer)
    elif status is grpc.StatusCode.FAILED_PRECONDITION:
        assert len(answer) > 20
    else:
        # gRPC itself says no to what is no message, before the plugin hears of it.
        assert status is grpc.StatusCode.UNKNOWN
        with pytest.raises(Exception, match=r"."):
            pb.AllocateRequest.FromString(body)
        assert world.api.pods[waiting.key] == waiting


@cases(2500)
@given(
    waiting=pod("p0"),
    available=st.lists(st.one_of(ids, odd_ids), max_size=6),
    must=st.lists(st.one_of(ids, odd_ids), max_size=3),
    size=st.one_of(st.integers(0, 3), st.integers(-(2**31), 2**31 - 1)),
)
def test_a_preference_is_never_an_error(
    world: World, channel: grpc.aio.Channel, waiting: Pod, available: list[str], must: list[str], size: int
) -> None:
    world.put([waiting], None)
    available, must = _sendable(available), _sendable(must)
    request = pb.PreferredAllocationRequest(
        container_requests=[
            pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=available, must_include_deviceIDs=must, allocation_size=size
            )
        ]
    )
    status, answer = ask(world, channel, "GetPreferredAllocation", request.SerializeToString())
    assert status is grpc.StatusCode.OK
    assert isinstance(answer, bytes)
    (chosen,) = pb.PreferredAllocationResponse.FromString(answer).container_responses
    assert set(chosen.deviceIDs) <= {*available, *must}
    if chosen.deviceIDs:
        assert len(chosen.deviceIDs) == size
        assert all(must.count(each) <= list(chosen.deviceIDs).count(each) for each in must)
    assert world.api.pods[waiting.key] == waiting
