"""`hami doctor` on clusters with one thing wrong each, and on one where all is well."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from hami.apps import cli
from hami.ctl.doctor import run
from hami.ctl.doctor.findings import Finding
from hami.ctl.doctor.snapshot import Snapshot
from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer
from tests.ctl.doctor_clusters import (
    ALLOCATED,
    BIND_TIME,
    HANDSHAKE,
    LOCK,
    PHASE,
    REGISTER,
    Obj,
    ago,
    cluster,
    create,
    examined,
    node,
    of_gone,
    pod,
    share,
    stamp,
    told,
)
from tests.ctl.doctor_webhooks import MINE, bundle, configuration, serving
from tests.tools.api_server import connected


def sick() -> dict[str, tuple[list[Obj], list[tuple[str, str, str]], str]]:
    """Clusters by illness, with stamps of now: what is found in them, and words of the finding."""
    gone = of_gone()
    return {
        "all is well": ([node(), pod("a", share()), pod("b", share(2000))], [], ""),
        "memory": (
            [node(), pod("a", share(10000)), pod("b", share(9000))],
            [("error", "over-allocated", "node n1 card GPU-a")],
            "memory MiB 19000 of 16384, held by default/a, default/b",
        ),
        "slots": (
            [node(), *(pod(name, share()) for name in "abc")],
            [("error", "over-allocated", "node n1 card GPU-a")],
            "slots 3 of 2",
        ),
        "a finished pod holds nothing": (
            [node(), pod("a", share(10000)), pod("b", share(9000), phase="Succeeded")],
            [],
            "",
        ),
        "unreadable pod": (
            [node(), pod("a", {ALLOCATED: "GPU-a,NVIDIA,many,0:;", PHASE: "success"})],
            [("error", "undecodable", "pod default/a")],
            "many",
        ),
        "unreadable register": ([node({REGISTER: "[{"})], [("error", "undecodable", "node n1")], "n1"),
        "upstream 2.4.1's register": (
            [node({REGISTER: "GPU-a,2,16384,100,NVIDIA-T4,0,true:"}), pod("a", share())],
            [],
            "",
        ),
        "card that is gone": (
            [node(), pod("a", share(card="GPU-z"))],
            [("warning", "unknown-card", "node n1 card GPU-z")],
            "held by default/a",
        ),
        "plugin is gone": (
            [node(offered="0")],
            [("error", "stale-registration", "node n1")],
            "offers no nvidia.com/gpu",
        ),
        "plugin never came": ([node(offered=None)], [("error", "stale-registration", "node n1")], "offers no"),
        "old stamp": (
            [node({HANDSHAKE: "Reported 2020-01-01 00:00:00.0 +0000 UTC"})],
            [("note", "stale-registration", "node n1")],
            "s old",
        ),
        "owner is gone": (
            [node({LOCK: gone})],
            [("warning", "orphaned-token", "node n1")],
            "owner default/gone is gone",
        ),
        "unreadable token": ([node({LOCK: "x,y"})], [("warning", "orphaned-token", "node n1")], "x,y"),
        "old time-only token": ([node({LOCK: stamp(600)})], [("warning", "orphaned-token", "node n1")], "expired"),
        "token in use": (
            [
                node({LOCK: f"{stamp(5)},default,a"}),
                pod("a", {**share(), PHASE: "allocating", BIND_TIME: ago(5)}, phase="Pending"),
            ],
            [],
            "",
        ),
        "never allocated": (
            [node(), pod("a", {**share(), PHASE: "allocating", BIND_TIME: ago(300)}, phase="Pending")],
            [("error", "stuck-pod", "pod default/a")],
            "devices are not allocated",
        ),
        "allocation failed": (
            [node(), pod("a", {**share(), PHASE: "failed"}, phase="Pending")],
            [("error", "stuck-pod", "pod default/a")],
            "could not give it",
        ),
        "around the webhook": (
            [node(), pod("a")],
            [("warning", "unaccounted-pod", "pod default/a")],
            "is not counted",
        ),
    }


@pytest.mark.parametrize("name", sick())
async def test_each_illness_is_found_alone(tmp_path: Path, name: str) -> None:
    objects, expected, words = sick()[name]
    async with cluster(tmp_path, *objects) as client:
        report = await examined(client)
    assert told(report) == expected
    for finding in report.findings:
        if finding.check not in ("webhook", "certificate"):
            assert words in finding.problem
            assert finding.advice


async def test_a_token_that_goes_meanwhile_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes as soon as the first look has found it, before anything else is read."""
    found: list[Finding] = []

    async def gone_before_the_second(
        client: ApiClient, snapshot: Snapshot, first: list[Finding], pause_s: float
    ) -> Any:
        found.extend(first)
        body = msgspec.json.encode({"metadata": {"annotations": {LOCK: None}}})
        await client.request("PATCH", "/api/v1/nodes/n1", body, "application/merge-patch+json")
        return await second_look(client, snapshot, first, pause_s)

    second_look = run._lasting
    monkeypatch.setattr(run, "_lasting", gone_before_the_second)
    async with cluster(tmp_path, node({LOCK: of_gone()})) as client:
        report = await examined(client)
    assert [each.check for each in found] == ["orphaned-token"]
    assert told(report) == []


# The webhook


# The command


@pytest.mark.parametrize(("objects", "status"), [([node()], 1), ([node({LOCK: of_gone()})], 1)])
async def test_json_and_exit_status(
    tmp_path: Path, objects: list[Obj], status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async with cluster(tmp_path, *objects):
        flags = ["doctor", "-o", "json", "--kubeconfig", str(tmp_path / "kubeconfig")]
        assert await asyncio.to_thread(cli.run, "hami", flags) == status
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["nodes"], document["cards"]) == (False, 1, 1)
    assert {"severity", "check", "subject", "problem", "advice"} <= document["findings"][0].keys()


async def test_text_and_exit_status_of_a_sound_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(MINE, tmp_path / "certs") as port:
        config = configuration({"url": f"https://127.0.0.1:{port}/webhook", "caBundle": bundle(MINE)})
        async with cluster(tmp_path, node(), config):
            flags = ["doctor", "--kubeconfig", str(tmp_path / "kubeconfig")]
            assert await asyncio.to_thread(cli.run, "kubectl hami", flags) == 0
    *dates, summary = capsys.readouterr().out.splitlines()
    assert summary.startswith("nothing is wrong (1 nodes, 1 cards")
    ends = f"{x509.load_pem_x509_certificate(MINE.cert_pem).not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    assert [each.partition(" is valid from ")[0] for each in dates] == [
        "webhook hami-webhook: an authority of caBundle",
        "webhook hami-webhook: the served certificate",
    ]
    assert all(each.endswith(f" to {ends}") for each in dates)


@pytest.mark.parametrize("flags", [["--bogus"], ["--webhook-address", "nowhere"], ["--kubeconfig", "no/such/file"]])
def test_used_wrongly(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run("hami", ["doctor", *flags]) == 2
    assert "hami doctor:" in capsys.readouterr().err


async def test_nothing_is_written(tmp_path: Path) -> None:
    async with ApiServer() as api, await connected(api, tmp_path) as client:
        await create(client, node({LOCK: of_gone()}))
        before = len(api.seen)
        await examined(client)
        assert {seen.verb for seen in list(api.seen)[before:]} == {"get", "list"}
