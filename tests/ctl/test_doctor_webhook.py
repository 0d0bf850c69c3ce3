"""`hami doctor` on webhooks: the served certificate, one that does not answer, the Service before it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from hami.certs import make
from hami.ctl.doctor.webhook import Endpoint
from tests.ctl.doctor_clusters import (
    cluster,
    create,
    examined,
    node,
    pod,
    told,
)
from tests.ctl.doctor_webhooks import ANOTHER, MINE, bundle, configuration, pair, serving

SERVED: dict[str, tuple[make.CertificatePair, Callable[[], str], list[tuple[str, str]], str]] = {
    "all is well": (MINE, lambda: bundle(MINE), [], ""),
    "another authority": (MINE, lambda: bundle(ANOTHER), [("error", "certificate")], "is not trusted by caBundle"),
    "another name": (named := pair(host="elsewhere"), lambda: bundle(named), [("error", "certificate")], "trusted"),
    "no bundle": (MINE, lambda: "", [("error", "certificate"), ("warning", "certificate")], ""),
    "broken bundle": (
        MINE,
        lambda: base64.b64encode(b"nothing").decode(),
        [("error", "certificate"), ("error", "certificate")],
        "",
    ),
    "soon over": (short := pair(10), lambda: bundle(short), [("warning", "certificate")] * 2, "ends in"),
    "after a renewal": (
        renewed := pair(),
        lambda: base64.b64encode(renewed.ca_pem + pair(5, begins_days_ago=9).ca_pem).decode(),
        [],
        "",
    ),
    "over": (old := pair(5, begins_days_ago=9), lambda: bundle(old), [("error", "certificate")] * 2, "ended at"),
}


@pytest.mark.parametrize("name", SERVED)
async def test_the_served_certificate_is_judged_as_the_api_server_does(tmp_path: Path, name: str) -> None:
    served, ca, expected, words = SERVED[name]
    async with serving(served, tmp_path / "certs") as port:
        config = configuration({"url": f"https://127.0.0.1:{port}/webhook", "caBundle": ca()})
        async with cluster(tmp_path, node(), config) as client:
            report = await examined(client)
    assert [(each.severity.value, each.check) for each in report.findings] == expected
    assert all(words in each.problem for each in report.findings)
    assert report.ok == (not expected)


async def test_a_webhook_that_does_not_answer_or_is_not_there(tmp_path: Path) -> None:
    async with cluster(tmp_path, node()) as client:
        assert told(await examined(client), webhook=True) == [("error", "webhook", "webhook")]
        async with serving(MINE, tmp_path / "certs") as port:
            closed = port
        await create(client, configuration({"url": f"https://127.0.0.1:{closed}/webhook", "caBundle": bundle(MINE)}))
        report = await examined(client)
        assert told(report, webhook=True) == [("error", "webhook", "webhook hami-webhook")]
        assert "not reached" in report.findings[0].problem


async def test_a_service_without_a_ready_pod_and_one_that_is_reached_by_a_forward(tmp_path: Path) -> None:
    served = pair(host="hami-scheduler.default.svc")
    service = {
        "kind": "Service",
        "metadata": {"name": "hami-scheduler"},
        "spec": {"selector": {"app": "hami"}, "ports": [{"port": 443}]},
    }
    reference = {"namespace": "default", "name": "hami-scheduler", "path": "/webhook", "port": 443}
    config = configuration({"service": reference, "caBundle": bundle(served)})
    async with cluster(tmp_path, node(), config) as client, serving(served, tmp_path / "certs") as port:
        dial = Endpoint("127.0.0.1", port, "")
        (missing,) = (await examined(client, dial=dial)).findings
        assert "does not exist" in missing.problem
        await create(client, service)
        (idle,) = (await examined(client, dial=dial)).findings
        assert "no ready pod" in idle.problem
        assert "created without HAMi" in idle.problem
        scheduler = pod("hami-scheduler-0", labels={"app": "hami"})
        scheduler["spec"] = {"containers": [{"name": "c", "image": "none"}], "nodeName": "n1"}
        scheduler["status"] = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await create(client, scheduler)
        assert (await examined(client, dial=dial)).findings == ()
        outside = await examined(client)
        assert outside.ok, "a Service's name is not known outside the cluster: a note"
