"""`/filter` and `/bind` on the wire: spellings, answers with all keys, and what broken callers get."""

from __future__ import annotations

import asyncio
import json

import pytest

from hami.web import asgi
from tests.web.asgi_client import call
from tests.web.extender_site import Site, node_object, pod


@pytest.mark.parametrize(
    ("pod_key", "names_key"), [("Pod", "NodeNames"), ("pod", "nodeNames"), ("pod", "nodenames"), ("Pod", "nodeNames")]
)
async def test_both_spellings_are_read_and_capitals_answered(pod_key: str, names_key: str) -> None:
    site = Site()
    answer = await site.filter({pod_key: pod(gpu=1, gpumem=1000), names_key: ["n1", "n2"]})
    assert answer["NodeNames"] == ["n1"]
    assert answer["FailedNodes"] is None
    assert answer["Error"] == ""
    assert site.events.told[0][:3] == ("default/p-u1", False, "FilteringSucceed")


async def test_the_answer_leaves_before_its_events_are_worked_out() -> None:
    site = Site()
    parts: list[asgi.Message] = [
        {"type": "http.request", "body": json.dumps({"Pod": pod(gpu=1), "NodeNames": ["n1"]}).encode()}
    ]
    told_at_send: list[int] = []

    async def receive() -> asgi.Message:
        return parts.pop(0)

    async def send(message: asgi.Message) -> None:
        told_at_send.append(len(site.events.told))

    await site.app({"type": "http", "path": "/filter", "method": "POST"}, receive, send)
    assert told_at_send == [0, 0]
    assert len(site.events.told) == 1


async def test_a_pod_without_devices_gets_its_names_back() -> None:
    answer = await Site().filter({"Pod": pod(), "NodeNames": ["x", "n1"]})
    assert answer["NodeNames"] == ["x", "n1"]
    assert answer["FailedNodes"] is None


async def test_refused_nodes_are_in_both_maps_with_the_reason() -> None:
    site = Site()
    answer = await site.filter({"Pod": pod(gpu=1, gpumem=20000), "NodeNames": ["n1", "n2"]})
    assert answer["NodeNames"] is None
    expected = {"n1": "2/2 CardInsufficientMemory", "n2": "node unregistered"}
    assert answer["FailedNodes"] == expected
    assert answer["FailedAndUnresolvableNodes"] == expected
    told = [message for _, _, reason, message in site.events.told if reason == "FilteringFailed"]
    assert "1 nodes CardInsufficientMemory(n1)" in told
    assert "no available node, 2 nodes do not meet" in told


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty body"),
        (b"{", "cannot be decoded"),
        (b"[]", "cannot be decoded"),
        (b'{"NodeNames":["n1"]}', "extender args missing pod"),
        (json.dumps({"Pod": pod(gpu=1)}).encode(), "missing node names"),
        (json.dumps({"Pod": pod(gpu=1), "NodeNames": [1]}).encode(), "no list of node names"),
        (json.dumps({"Pod": pod(gpu=1), "NodeNames": {"n": 1}}).encode(), "no list of node names"),
        (json.dumps({"Pod": {"spec": {"containers": 3}}, "NodeNames": []}).encode(), "cannot be decoded"),
    ],
)
async def test_broken_filter_calls_are_answered_with_words(body: bytes, words: str) -> None:
    answer = await Site().filter(body)
    assert words in answer["Error"]
    assert answer["NodeNames"] is None


async def test_full_nodes_are_simulated_without_a_trace() -> None:
    site = Site()
    nodes = {"items": [node_object("m1"), node_object("m2"), {"metadata": {"name": "cpu"}}]}
    first = await site.filter({"Pod": pod(gpu=1), "Nodes": nodes})
    assert [item["metadata"]["name"] for item in first["Nodes"]["items"]] == ["m1"]
    assert first["FailedNodes"] == {"cpu": "node unregistered"}
    every = await site.filter({"Pod": pod(gpu=1), "Nodes": nodes}, query="all=true")
    assert [item["metadata"]["name"] for item in every["Nodes"]["items"]] == ["m1", "m2"]
    assert site.events.told == []
    assert list(site.world.ledger.claims()) == []


async def test_a_replica_that_does_not_lead_says_so_and_touches_nothing() -> None:
    site = Site()
    site.gate.refusal = "this scheduler does not lead"
    answer = await site.filter({"Pod": pod(gpu=1), "NodeNames": ["n1"]})
    assert (answer["Error"], answer["NodeNames"]) == ("this scheduler does not lead", None)
    args = {"PodName": "p", "PodNamespace": "default", "PodUID": "u1", "Node": "n1"}
    assert json.loads((await site.post("/bind", args)).body) == {"Error": "this scheduler does not lead"}
    assert (site.binds.bound, site.events.told, list(site.world.ledger.claims())) == ([], [], [])


async def test_filter_waits_for_the_gate() -> None:
    site = Site()
    site.gate.event.clear()
    waiting = asyncio.ensure_future(site.filter({"Pod": pod(gpu=1), "NodeNames": ["n1"]}))
    await asyncio.sleep(0)
    assert not waiting.done()
    site.gate.event.set()
    assert (await waiting)["NodeNames"] == ["n1"]


@pytest.mark.parametrize(("error", "expected"), [("", ""), ("node n1 is taken", "node n1 is taken")])
async def test_bind_answers_with_the_error_text(error: str, expected: str) -> None:
    site = Site(error)
    reply = await site.post("/bind", {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"})
    assert (reply.status, json.loads(reply.body)) == (200, {"Error": expected})
    assert site.binds.bound == [("ns", "p", "u", "n1")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty body"),
        (b"nonsense", "cannot be decoded"),
        (b"{}", "missing PodName, PodNamespace, PodUID, Node"),
        (b'{"podName":"p","podNamespace":"ns","podUID":"u"}', "missing Node"),
    ],
)
async def test_broken_bind_calls_are_answered_with_words(body: bytes, words: str) -> None:
    site = Site()
    reply = await site.post("/bind", body)
    assert words in json.loads(reply.body)["Error"]
    assert site.binds.bound == []


async def test_a_client_that_leaves_cancels_its_bind() -> None:
    site = Site()
    site.binds.go.clear()
    leave = asyncio.Event()
    document = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n1"}
    waiting = asyncio.ensure_future(site.post("/bind", document, leave=leave))
    await asyncio.sleep(0)
    leave.set()
    await waiting
    site.binds.go.set()
    await asyncio.sleep(0)
    assert site.binds.bound == []


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/filter", 405),
        ("PUT", "/webhook", 405),
        ("GET", "/healthz", 200),
        ("GET", "/readyz", 200),
        ("GET", "/version", 200),
        ("GET", "/nowhere", 404),
    ],
)
async def test_other_routes(method: str, path: str, status: int) -> None:
    reply = await call(Site().app, path, method=method)
    assert reply.status == status
