"""Bodies that no Kubernetes component sends: each is answered with HTTP 200 and words, none ends in an exception."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from hami.core.admission import AdmissionSettings, review
from hami.placement.engine import Engine
from hami.web import app, wire
from hami.web.extender import Extender
from hami.web.webhook import Webhook
from tests.web.extender_site import Site, pod

ROUTES = ("/filter", "/bind", "/webhook")
DEEP = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
WORDS: dict[str, Callable[[Any], str]] = {
    "/filter": lambda answer: str(answer["Error"]),
    "/bind": lambda answer: str(answer["Error"]),
    "/webhook": lambda answer: str(answer["response"]["status"].get("message", "")),
}
ODD: tuple[Any, ...] = (
    None, "", 0, -1, 1e308, 2**63, 10**30, True, [], {}, "x" * 3000, "\x00", "é", "1", "-1", "16Gi", [None],
    {"a": None}, [{}], "n1", ";;;", ",,,", ":::",
)  # fmt: skip


class RealSite(Site):
    """The application with the real admission behind it."""

    def __init__(self) -> None:
        super().__init__()
        extender = Extender(Engine(self.world), self.binds, self.gate, self.events)
        reviewer = Webhook(lambda pod, space: review(pod, space, self.world.registry, AdmissionSettings()))
        self.app = app.build(extender, reviewer, lambda: "")


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        b"[" * 50_000,
        b'{"Pod":{"x":' + DEEP + b'},"request":{"object":' + DEEP + b"}}",
        b"\xff\xfe",
        b"null",
        b"1",
    ],
    ids=["object", "list", "inside", "no text", "null", "number"],
)
async def test_bodies_that_cannot_be_read(route: str, body: bytes) -> None:
    reply = await RealSite().post(route, body)
    assert reply.status == 200
    assert WORDS[route](json.loads(reply.body))


async def test_a_chosen_name_in_what_is_no_list_of_names() -> None:
    site = RealSite()
    assert (await site.filter({"Pod": pod(gpu=1), "NodeNames": ["n1", 5]}))["NodeNames"] == ["n1"]
    assert site.events.told == []


@pytest.mark.parametrize("seed", range(4))
async def test_mutated_calls_are_always_answered(seed: int) -> None:
    chance = random.Random(seed)
    site = RealSite()
    subject = pod(gpu=1, gpumem=1000)
    subject["metadata"]["annotations"] = {"nvidia.com/use-gpuuuid": "GPU-0", "hami.io/gpu-scheduler-policy": "binpack"}
    documents: dict[str, Any] = {
        "/filter": {"Pod": subject, "NodeNames": ["n1", "n2"]},
        "/bind": {"PodName": "p", "PodNamespace": "d", "PodUID": "u1", "Node": "n1"},
        "/webhook": {"apiVersion": "admission.k8s.io/v1", "request": {"uid": "u", "namespace": "d", "object": subject}},
    }
    for _ in range(150):
        route = chance.choice(ROUTES)
        body = bytearray(json.dumps(_mutated(documents[route], chance)).encode())
        if chance.random() < 0.2:
            body[chance.randrange(len(body))] = chance.randrange(256)
        assert (await site.post(route, bytes(body))).status == 200


def _mutated(value: Any, chance: random.Random) -> Any:
    if isinstance(value, dict) and value and chance.random() > 0.15:
        key = chance.choice(list(value))
        return {**value, key: _mutated(value[key], chance)}
    if isinstance(value, list) and value and chance.random() > 0.15:
        return [*value[:-1], _mutated(value[-1], chance), *value[:1]]
    return chance.choice(ODD)


@pytest.mark.parametrize("depth", [10, 200, 400, 480, 600, 900, 2000, 100_000])
def test_a_pod_of_any_depth_with_something_wrong_in_it_is_a_decode_error(depth: int) -> None:
    nested = '{"a":' * depth + "null" + "}" * depth
    with pytest.raises(msgspec.DecodeError):
        wire.decoded_pod(msgspec.Raw(f'{{"spec": {{"nodeName": 7, "x": {nested}}}}}'.encode()))
