"""Events in the background: content, counting, bounds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hami.kube import events as events_module
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.events import MAX_MESSAGE_CHARS, EventRecorder
from hami.placement.ports import EventSink
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from tests.kube.objects import make_node, make_pod
from tests.kube.recorded import events, running


def as_port(recorder: EventRecorder) -> EventSink:
    """mypy proves here that the recorder implements the port."""
    return recorder


async def test_a_pod_event_is_what_describe_shows(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    async with running(EventRecorder(client, "hami-scheduler")) as recorder:
        as_port(recorder).pod_event(pod, warning=True, reason="FilteringFailed", message="no room")
        await recorder.drain()
    (event,) = await events(client)
    assert event["involvedObject"]["uid"] == pod.metadata.uid
    assert event["involvedObject"]["kind"] == "Pod"
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "FilteringFailed", "no room")
    assert event["source"] == {"component": "hami-scheduler"}
    assert event["count"] == 1
    assert event["metadata"]["name"].startswith("p1.")


async def test_repeats_become_a_count(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    async with running(EventRecorder(client, "c")) as recorder:
        recorder.pod_event(pod, warning=False, reason="R", message="same")
        await recorder.drain()
        for _ in range(3):
            recorder.pod_event(pod, warning=False, reason="R", message="same")
        recorder.pod_event(pod, warning=False, reason="R", message="other")
        await recorder.drain()
    assert sorted((event["message"], event["count"]) for event in await events(client)) == [("other", 1), ("same", 4)]


async def test_an_event_that_the_server_has_forgotten_is_written_anew(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    async with running(EventRecorder(client, "c")) as recorder:
        recorder.pod_event(pod, warning=False, reason="R", message="m")
        await recorder.drain()
        (event,) = await events(client)
        await client.request("DELETE", paths.event("default", event["metadata"]["name"]))
        recorder.pod_event(pod, warning=False, reason="R", message="m")
        await recorder.drain()
    (event,) = await events(client)
    assert event["count"] == 1


async def test_node_events_use_the_name_as_uid(client: ApiClient) -> None:
    await make_node(client, "n1")
    async with running(EventRecorder(client, "c", host="n1")) as recorder:
        recorder.node_event("n1", warning=True, reason="R", message="m")
        await recorder.drain()
    (event,) = await events(client)
    assert (event["involvedObject"]["kind"], event["involvedObject"]["uid"]) == ("Node", "n1")
    assert event["source"] == {"component": "c", "host": "n1"}


async def test_long_messages_are_cut_to_what_the_api_takes(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    async with running(EventRecorder(client, "c")) as recorder:
        recorder.pod_event(pod, warning=False, reason="R", message="x" * 5000)
        await recorder.drain()
    (event,) = await events(client)
    assert len(event["message"]) == MAX_MESSAGE_CHARS
    assert event["message"].endswith("...")


async def test_what_does_not_fit_is_dropped_and_counted(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    recorder = EventRecorder(client, "c", limit=2)
    for index in range(5):
        recorder.pod_event(pod, warning=False, reason="R", message=f"m{index}")
    assert recorder.stats.dropped == 3
    async with running(recorder):
        await recorder.drain()
    assert sorted(event["message"] for event in await events(client)) == ["m0", "m1"]


async def test_a_refused_event_does_not_stop_the_next(api: ApiServer, client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    api.faults.add(Fault("internal-error", verb="create", resource="events", times=1))
    async with running(EventRecorder(client, "c")) as recorder:
        recorder.pod_event(pod, warning=False, reason="R", message="first")
        recorder.pod_event(pod, warning=False, reason="R", message="second")
        await recorder.drain()
    assert [event["message"] for event in await events(client)] == ["second"]
    assert (recorder.stats.written, recorder.stats.dropped) == (1, 1)


async def test_events_of_one_pod_come_in_their_order(api: ApiServer, client: ApiClient) -> None:
    """Who sees the summary of a refusal sees its reasons; other pods' events do not wait for a slow one."""
    late, other = await make_pod(client, "late"), await make_pod(client, "other")
    api.faults.add(Fault("latency", verb="create", resource="events", seconds=0.3, times=1))
    async with running(EventRecorder(client, "c")) as recorder:
        for message in ("reason", "summary"):
            recorder.pod_event(late, warning=True, reason="R", message=message)
        recorder.pod_event(other, warning=True, reason="R", message="other")
        await recorder.drain()
    found = sorted(await events(client), key=lambda event: int(event["metadata"]["resourceVersion"]))
    assert [event["message"] for event in found] == ["other", "reason", "summary"]


async def test_a_broken_connection_is_tried_again(api: ApiServer, client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    api.faults.add(Fault("lost-answer", verb="create", resource="events", times=1))
    async with running(EventRecorder(client, "c", backoff_s=0.01)) as recorder:
        recorder.pod_event(pod, warning=False, reason="R", message="m")
        await recorder.drain()
    assert recorder.stats.dropped == 0
    assert {event["message"] for event in await events(client)} == {"m"}


async def test_what_waits_at_the_end_is_written_by_drain(client: ApiClient) -> None:
    pod = await make_pod(client, "p1")
    recorder = EventRecorder(client, "c")
    async with running(recorder):
        pass
    recorder.pod_event(pod, warning=False, reason="R", message="last words")
    await recorder.drain()
    assert [event["message"] for event in await events(client)] == ["last words"]


async def test_events_are_collected_until_somebody_is_in_a_hurry(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "COLLECT_S", 60.0)
    pod = await make_pod(client, "p1")
    async with running(EventRecorder(client, "c")) as recorder:
        for number in range(20):
            recorder.pod_event(pod, warning=False, reason="R", message=str(number))
        for _ in range(5):
            assert await events(client) == []
        await recorder.drain(60.0)
    assert sorted(int(event["message"]) for event in await events(client)) == list(range(20))


async def test_what_was_under_way_when_the_end_came_is_written_by_drain(
    client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events_module, "COLLECT_S", 0.0)
    pod = await make_pod(client, "p1")
    under_way = asyncio.Event()

    async def never(*_: Any, **__: Any) -> Any:
        under_way.set()
        return await asyncio.get_running_loop().create_future()

    recorder = EventRecorder(client, "c")
    with monkeypatch.context() as patched:
        patched.setattr(client, "request", never)
        async with running(recorder):
            recorder.pod_event(pod, warning=False, reason="R", message="first")
            await asyncio.wait_for(under_way.wait(), 60.0)
            recorder.pod_event(pod, warning=False, reason="R", message="first")
            recorder.pod_event(pod, warning=False, reason="R", message="second")
    await recorder.drain(60.0)
    found = {event["message"]: event["count"] for event in await events(client)}
    assert found == {"first": 2, "second": 1}
