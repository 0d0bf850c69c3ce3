"""An event recorder at work, and what it wrote."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.events import EventRecorder


@asynccontextmanager
async def running(recorder: EventRecorder) -> AsyncIterator[EventRecorder]:
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    try:
        yield recorder
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def events(client: ApiClient, namespace: str = "default") -> list[dict[str, Any]]:
    listed: dict[str, list[dict[str, Any]]] = msgspec.json.decode(
        await client.request("GET", paths.events_in(namespace))
    )
    return listed["items"]
