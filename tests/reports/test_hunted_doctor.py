"""`hami doctor` on clusters whose objects are odd at one place each: findings or one clear line, never a crash."""

from __future__ import annotations

import copy
import json
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from hami.apps import doctor
from hami.core.errors import HamiError
from hami.ctl.doctor.run import examine
from hami.ctl.doctor.webhook import Endpoint
from hami.kube.client import ApiClient
from tests.ctl.doctor_clusters import (
    BIND_TIME,
    HANDSHAKE,
    LOCK,
    PHASE,
    REGISTRY,
    Obj,
    ago,
    cluster,
    create,
    node,
    of_gone,
    pod,
    share,
    told,
)
from tests.reports.odd_values import ODD, places, replaced

WEBHOOKS = "mutatingwebhookconfigurations"
NOWHERE = Endpoint("127.0.0.1", 1, "x")


def webhooks(url: str = "https://127.0.0.1:1/webhook") -> Obj:
    service = {"namespace": "default", "name": "s", "path": "/webhook", "port": 443}
    rules = [{"resources": ["pods"], "operations": ["CREATE"]}]
    shared = {"name": "vgpu.hami.io", "failurePolicy": "Ignore", "timeoutSeconds": 10, "rules": rules}
    first = {**shared, "clientConfig": {"service": service, "caBundle": "YWFh"}}
    return {"metadata": {"name": "w"}, "webhooks": [first, {**shared, "clientConfig": {"url": url}}]}


def world() -> dict[str, Any]:
    behind = pod("web", labels={"a": "b"})
    behind["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    waiting = pod("b", {**share(9000), PHASE: "allocating", BIND_TIME: ago(500)}, phase="Pending")
    return {
        "nodes": [node({HANDSHAKE: "Reported 2020-01-01 00:00:00.0 +0000 UTC", LOCK: of_gone()})],
        "pods": [pod("a", share(10000)), waiting, behind],
        WEBHOOKS: [webhooks()],
        "services": {"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"a": "b"}}},
    }


class Answers:
    """Answers the reads that the doctor makes from a dictionary, and never says what time it is."""

    server_unix_s: float | None = None

    def __init__(self, objects: dict[str, Any]) -> None:
        self._objects = objects

    async def request(self, _method: str, path: str, **_more: Any) -> bytes:
        parts = path.split("/")
        if parts[-1] in self._objects:
            answer = {"metadata": {"resourceVersion": "1"}, "items": self._objects[parts[-1]]}
        else:
            found = self._objects[parts[-2]]
            answer = found[0] if isinstance(found, list) else found
        return json.dumps(answer).encode()


PLACES = [place for place in places(world()) if len(place) > 1]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
async def test_odd_values_at_every_place_are_findings_or_one_clear_line(place: tuple[Any, ...]) -> None:
    of_url = place[-1] == "url"
    for odd in ODD:
        objects = replaced(world(), place, copy.deepcopy(odd))
        if place[0] in ("nodes", "pods"):
            objects[WEBHOOKS] = []  # nothing to connect to, which takes time
        elif of_url:
            del objects[WEBHOOKS][0]["webhooks"][0]  # its Service's name is asked of no resolver
        client = cast("ApiClient", Answers(objects))
        with suppress(HamiError):
            msgspec.json.encode(await examine(client, REGISTRY, second_look_s=0.0, dial=None if of_url else NOWHERE))


@pytest.mark.parametrize("url", ["https://[::1", "https://h:99999/x", "https://h:abc", f"https://{'a' * 300}/"])
async def test_a_webhook_url_that_is_none_is_a_finding(url: str, tmp_path: Path) -> None:
    async with cluster(tmp_path, node()) as client:
        configuration = {**webhooks(url), "kind": "MutatingWebhookConfiguration"}
        del configuration["webhooks"][0]
        await create(client, configuration)
        report = await examine(client, REGISTRY, second_look_s=0.0)
    assert [each for each in told(report, webhook=True) if each[0] == "error"] == [("error", "webhook", "webhook w")]


@pytest.mark.parametrize("address", [":1", "h", "h:", "h:0", "h:65536", "[::1]:99999", "h:-1", f"h:{'9' * 5000}"])
def test_a_webhook_address_without_a_port_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert doctor.main([f"--webhook-address={address}"]) == 2
    assert "is not allowed: expected HOST:PORT" in capsys.readouterr().err
