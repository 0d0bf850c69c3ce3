"""`hami doctor` where it sees less than all: missing rights, dropped lists, stamps that make no sense."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from hami.apps import cli
from hami.core.errors import ApiError
from hami.ctl.doctor import snapshot
from hami.ctl.doctor.webhook import Endpoint
from hami.sim.apiserver import ApiServer
from hami.sim.apiserver.faults import Fault
from tests.ctl.doctor_clusters import (
    BIND_TIME,
    LOCK,
    PHASE,
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
from tests.ctl.doctor_webhooks import ANOTHER, MINE, bundle, configuration, pair, serving
from tests.tools.api_server import connected


@pytest.mark.parametrize("kind", ["services", "mutatingwebhookconfigurations"])
async def test_what_may_not_be_read_is_said_and_the_rest_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A Service that may not be read is not called missing, and the certificate behind it is looked at."""
    served = pair(host="hami-scheduler.default.svc")
    reference = {"namespace": "default", "name": "hami-scheduler", "path": "/webhook", "port": 443}
    config = configuration({"service": reference, "caBundle": bundle(ANOTHER)})
    sick = node(offered="0")
    async with cluster(tmp_path, sick, config) as client, serving(served, tmp_path / "certs") as port:
        whole = client.request

        async def refused(method: str, path: str, *rest: Any, **more: Any) -> bytes:
            if f"/{kind}" in path:
                raise ApiError(403, "Forbidden", f"{kind} is forbidden")
            return await whole(method, path, *rest, **more)

        monkeypatch.setattr(client, "request", refused)
        report = await examined(client, dial=Endpoint("127.0.0.1", port, ""))
    found = {(severity, check) for severity, check, _ in told(report, webhook=True)}
    webhooks = ("error", "certificate") if kind == "services" else ("note", "webhook")
    assert found == {("error", "stale-registration"), webhooks}
    (note,) = report.notes
    assert f"{kind} is forbidden" in note


@pytest.mark.parametrize(("times", "status"), [(2, 0), (3, 2)])
async def test_a_list_that_the_server_dropped_begins_anew(
    tmp_path: Path, times: int, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Large clusters over slow lines."""
    async with serving(MINE, tmp_path / "certs") as port, ApiServer() as api, await connected(api, tmp_path) as client:
        await create(client, node())
        await create(client, configuration({"url": f"https://127.0.0.1:{port}/webhook", "caBundle": bundle(MINE)}))
        dropped = api.faults.add(Fault("gone", verb="list", resource="pods", times=times))
        flags = ["doctor", "--kubeconfig", str(tmp_path / "kubeconfig")]
        assert await asyncio.to_thread(cli.run, "hami", flags) == status
        assert dropped.hits == times
    assert ("(1 nodes, 1 cards, 0 pods)" in capsys.readouterr().out) is (status == 0)


@pytest.mark.parametrize(("few", "reads"), [(3, {"get", "list"}), (2, {"list"})])
async def test_many_tokens_are_looked_at_again_by_one_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int, reads: set[str]
) -> None:
    """A plugin that died everywhere leaves a token on each of thousands of nodes."""
    monkeypatch.setattr(snapshot, "_FEW", few)
    names = ["n1", "n2", "n3"]
    async with ApiServer() as api, await connected(api, tmp_path) as client:
        for name in names:
            orphaned = node({LOCK: of_gone()})
            orphaned["metadata"]["name"] = name
            await create(client, orphaned)
        before = len(api.seen)
        report = await examined(client)
        assert {seen.verb for seen in list(api.seen)[before:] if seen.resource == "nodes"} == reads
    assert told(report) == [("warning", "orphaned-token", f"node {name}") for name in names]


@pytest.mark.parametrize("odd", ["soon", "", "９９", "-5", "9" * 40])
@pytest.mark.parametrize(("seconds_ago", "stuck"), [(300, True), (5, False)])
async def test_when_a_pod_was_bound_the_api_server_knows_too(
    tmp_path: Path, odd: str, seconds_ago: float, stuck: bool
) -> None:
    waiting: Obj = pod("a", {**share(), PHASE: "allocating", BIND_TIME: odd}, phase="Pending")
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp(seconds_ago)}
    waiting["status"] = {"phase": "Pending", "conditions": [condition]}
    async with cluster(tmp_path, node(), waiting) as client:
        report = await examined(client)
    assert told(report) == ([("error", "stuck-pod", "pod default/a")] if stuck else [])


@pytest.mark.parametrize(("offered", "hinted"), [(None, True), ("0", False)])
async def test_a_resource_that_the_doctor_was_not_told_the_name_of(
    tmp_path: Path, offered: str | None, hinted: bool
) -> None:
    async with cluster(tmp_path, node(offered=offered)) as client:
        report = await examined(client)
    (finding,) = [each for each in report.findings if each.check == "stale-registration"]
    assert ("--device-config-file" in finding.advice) is hinted


@pytest.mark.parametrize("ahead_s", [0.0, 600.0, -600.0])
async def test_ages_are_counted_by_the_api_servers_clock(tmp_path: Path, ahead_s: float) -> None:
    """A laptop that is ten minutes off calls no pod stuck that was bound just now, and overlooks none."""
    young = pod("young", {**share(), PHASE: "allocating", BIND_TIME: ago(5)}, phase="Pending")
    stuck = pod("stuck", {**share(), PHASE: "allocating", BIND_TIME: ago(200)}, phase="Pending")
    async with cluster(tmp_path, node({LOCK: stamp(5)}), young, stuck) as client:
        report = await examined(client, unix_s=lambda: time.time() + ahead_s)
    assert told(report) == [("error", "stuck-pod", "pod default/stuck")]
    clocks = [note for note in report.notes if "this machine's clock" in note]
    assert [("ahead of" in note, "behind" in note) for note in clocks] == (
        [(ahead_s > 0, ahead_s < 0)] if ahead_s else []
    )
