"""What a running scheduler does about its own state without being asked: sweeps and audits (issue 6, design 4).

The waits between two rounds are shortened; everything else is as in production. Each test says what would stay for
ever, or for 20 minutes, if the round did not come.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hami.core import keys
from hami.core.model import Use
from hami.placement import auditor, reservations, world
from hami.placement.token_sweep import TokenSweep
from tests.apps.rig import NVIDIA, Rig, node, pod, rigged

SHORT_S = 0.05
DEADLINE_S = 120.0


@pytest.fixture
async def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    monkeypatch.setattr(auditor, "MEMORY_PERIOD_S", SHORT_S)
    monkeypatch.setattr(auditor, "LIST_PERIOD_S", SHORT_S)
    monkeypatch.setattr(reservations, "PAUSE_S", SHORT_S)
    monkeypatch.setattr(reservations, "OLD_S", SHORT_S)
    monkeypatch.setattr(world, "SWEEP_S", SHORT_S)
    monkeypatch.setattr(TokenSweep.run, "__defaults__", (SHORT_S,))
    monkeypatch.setattr(auditor.Auditor.__init__, "__kwdefaults__", {"settle_s": SHORT_S})
    async with rigged(tmp_path) as found:
        await found.cluster.apply(node("n1"))
        yield found


async def differences_told(rig: Rig) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = (await rig.get("/api/v1/events"))["items"]
    return [each for each in events if each["reason"] == keys.EVENT_AUDIT_DIFFERENCE]


async def until_told(rig: Rig, words: str) -> dict[str, Any]:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            for event in await differences_told(rig):
                if words in event["message"]:
                    return event
            await asyncio.sleep(0.02)


async def test_a_token_of_nobody_is_taken_away(rig: Rig) -> None:
    replica = await rig.replica()
    written = datetime.datetime.now(datetime.UTC)
    await rig.annotate("/api/v1/nodes/n1", {keys.NODE_LOCK: f"{written:%Y-%m-%dT%H:%M:%SZ},default,gone"})
    await rig.cluster.until(
        "/api/v1/nodes/n1", lambda found: keys.NODE_LOCK not in found["metadata"].get("annotations", {})
    )
    assert replica.missing() == ""


async def test_a_reservation_of_a_pod_that_nobody_knows_ends(rig: Rig) -> None:
    """kube-scheduler asked for it after its deletion had gone by unseen: no event will ever come."""
    replica = await rig.replica()
    stranger = pod("ghost", uid="uid-ghost", resourceVersion="1")
    answer = await rig.call(replica, "filter", {"Pod": stranger, "NodeNames": ["n1"]})
    assert answer["NodeNames"] == ["n1"]
    assert replica.world.ledger.get("uid-ghost") is not None
    await rig.until(lambda: replica.world.ledger.get("uid-ghost") is None, "the reservation's end", DEADLINE_S)
    assert dict(replica.world.ledger.uses("n1")) == {}


async def test_a_pod_that_still_waits_keeps_its_reservation_over_many_looks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = await rig.replica()
    await rig.cluster.apply(pod("p"))
    found = await rig.the_pod("p")
    await rig.call(replica, "filter", {"Pod": found, "NodeNames": ["n1"]})
    looks = 0
    on_pod = replica.world.on_pod

    def counted(seen: Any) -> None:
        nonlocal looks
        looks += seen.metadata.name == "p"
        on_pod(seen)

    monkeypatch.setattr(replica.world, "on_pod", counted)
    await rig.until(lambda: looks >= 3, "three looks", DEADLINE_S)
    assert replica.world.ledger.get(found["metadata"]["uid"]) is not None


async def test_books_that_differ_from_their_text_are_told_and_left(rig: Rig) -> None:
    """Each minute: the claim's charges against the annotation that it came from."""
    replica = await rig.replica()
    placed = pod("p", annotations={keys.VGPU_NODE: "n1", NVIDIA.allocated_key: "GPU-0,NVIDIA,1000,0:;"})
    placed["spec"]["nodeName"] = "n1"
    await rig.cluster.apply(placed)
    uid = (await rig.the_pod("p"))["metadata"]["uid"]
    await rig.until(lambda: replica.world.ledger.get(uid) is not None, "the pod is booked")
    assert await differences_told(rig) == []
    claim = replica.world.ledger.get(uid)
    assert claim is not None
    claim.charges = (("GPU-0", Use(1, 5000, 0)),)
    event = await until_told(rig, "(memory): pod default/p")
    assert event["involvedObject"]["name"] == "n1"
    assert event["type"] == "Warning"
    assert claim.charges == (("GPU-0", Use(1, 5000, 0)),), "never a silent repair"


async def test_a_pod_that_the_watch_never_brought_is_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hour: against a paged list of all pods."""
    monkeypatch.setattr(auditor.Auditor, "check_memory", no_difference)
    replica = await rig.replica()
    monkeypatch.setattr(replica.world, "on_pod", lambda _: None)
    placed = pod("p", annotations={keys.VGPU_NODE: "n1", NVIDIA.allocated_key: "GPU-0,NVIDIA,1000,0:;"})
    placed["spec"]["nodeName"] = "n1"
    await rig.cluster.apply(placed)
    await until_told(rig, "(list): pod default/p holds cards on node n1 and is not booked")
    assert replica.world.ledger.uids_on("n1") == set(), "never a silent repair"


async def no_difference(_: auditor.Auditor) -> list[auditor.Difference]:
    return []


async def test_a_reservation_past_the_backstop_ends_while_no_decision_asks(rig: Rig) -> None:
    replica = await rig.replica()
    await rig.cluster.apply(pod("p"))
    found = await rig.the_pod("p")
    await rig.call(replica, "filter", {"Pod": found, "NodeNames": ["n1"]})
    claim = replica.world.ledger.get(found["metadata"]["uid"])
    assert claim is not None
    replica.world.ledger.expire(claim.deadline_s - 1.0)
    assert replica.world.ledger.get(found["metadata"]["uid"]) is claim
    claim.deadline_s = 0.0
    replica.world.ledger._deadlines[:] = [(0.0, claim.uid)]
    await rig.until(lambda: replica.world.ledger.get(claim.uid) is None, "the backstop", DEADLINE_S)
