"""What tests of Allocate ask for, and how they look at the answer."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from tests.deviceplugin.bench import A, Bench

ONE = f"{A},NVIDIA,3000,30:;"


async def refused(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return str(caught.value.details())


def writes(node: Bench, resource: str) -> int:
    return sum(seen.verb == "patch" and seen.resource == resource for seen in node.api.seen)
