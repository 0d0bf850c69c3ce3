"""Events give way to the writes of binds."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext

import pytest

from hami.core.errors import NotFoundError
from hami.core.objects import ObjectMeta, Pod
from hami.kube import events, paths
from hami.kube.client import ApiClient
from hami.kube.events import EventRecorder
from hami.kube.ratelimit import Lane
from hami.kube.urgent import Urgent
from tests.kube.recorded import events as listed
from tests.kube.recorded import running

LONG_S = 60.0
POD = Pod(metadata=ObjectMeta(namespace="default", name="p1", uid="u1"))
ROUND_TRIPS = 5


async def test_quiet_lasts_until_the_last_request_has_ended() -> None:
    urgent = Urgent()
    with urgent.request():
        with urgent.request():
            waiting = asyncio.create_task(urgent.quiet(time.monotonic() + LONG_S))
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not waiting.done()
    ended_s = time.monotonic()
    await asyncio.wait_for(waiting, LONG_S)
    assert time.monotonic() - ended_s < LONG_S / 2


async def test_quiet_is_at_once_where_nothing_was_under_way() -> None:
    waiting = asyncio.create_task(Urgent().quiet(time.monotonic() + LONG_S))
    await asyncio.sleep(0)
    assert waiting.done()


async def test_nobody_gives_way_beyond_the_limit() -> None:
    urgent = Urgent()
    with urgent.request():
        await asyncio.wait_for(urgent.quiet(time.monotonic() + 0.02), LONG_S)


@pytest.mark.parametrize(
    ("under_way", "patience_s", "written_meanwhile"),
    [(True, LONG_S, 0), (False, LONG_S, 1), (True, 0.0, 1)],
    ids=["a bind writes", "no bind", "the event has waited long enough"],
)
async def test_an_event_waits_for_binds(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch, *, under_way: bool, patience_s: float, written_meanwhile: int
) -> None:
    """Meanwhile: in the time of some round trips, which an event that does not wait needs one of."""
    monkeypatch.setattr(events, "GIVE_WAY_S", patience_s)
    async with running(EventRecorder(client, "c")) as recorder:
        with client.urgent.request() if under_way else nullcontext():
            recorder.pod_event(POD, warning=False, reason="R", message="m")
            deadline_s = time.monotonic() + LONG_S
            seen, looks = 0, 0
            while looks < ROUND_TRIPS or (seen < written_meanwhile and time.monotonic() < deadline_s):
                seen, looks = len(await listed(client)), looks + 1
            assert seen == written_meanwhile
        await recorder.drain(LONG_S)
    assert len(await listed(client)) == 1


async def test_many_events_wait_for_nobody(client: ApiClient) -> None:
    async with running(EventRecorder(client, "c", limit=2)) as recorder:
        with client.urgent.request():
            recorder.pod_event(POD, warning=False, reason="R", message="m")
            await recorder.drain(LONG_S)
    assert len(await listed(client)) == 1


@pytest.mark.parametrize(("lane", "urgent"), [(Lane.BIND, True), (Lane.BINDING, True), (Lane.EVENT, False)])
async def test_what_is_urgent(client: ApiClient, monkeypatch: pytest.MonkeyPatch, lane: Lane, *, urgent: bool) -> None:
    """Also a request that fails ends."""
    counted = 0
    request = client.urgent.request

    def counting() -> object:
        nonlocal counted
        counted += 1
        return request()

    monkeypatch.setattr(client.urgent, "request", counting)
    with pytest.raises(NotFoundError):
        await client.request("GET", paths.pod("default", "nobody"), lane=lane)
    assert counted == urgent
    await asyncio.wait_for(client.urgent.quiet(time.monotonic() + LONG_S), LONG_S / 2)
