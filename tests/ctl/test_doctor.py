"""`hami doctor` on clusters with one thing wrong each, and on one where all is well."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509

from hami.apps import cli
from hami.certs import make
from hami.core.device_type import Registry
from hami.ctl.doctor import run
from hami.ctl.doctor.findings import Finding
from hami.ctl.doctor.run import examine
from hami.ctl.doctor.show import Report
from hami.ctl.doctor.snapshot import Snapshot
from hami.ctl.doctor.webhook import Endpoint
from hami.kube.client import ApiClient
from hami.sim.apiserver import ApiServer
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.tools.api_server import connected

REGISTRY: Registry = (Nvidia(NvidiaConfig()),)
REGISTER, HANDSHAKE, LOCK = "hami.io/node-nvidia-register", "hami.io/node-handshake", "hami.io/mutex.lock"
ALLOCATED, PHASE, BIND_TIME = "hami.io/vgpu-devices-allocated", "hami.io/bind-phase", "hami.io/bind-time"
CARDS = '[{"id":"GPU-a","count":2,"devmem":16384,"devcore":100,"type":"NVIDIA A100","mode":"hami-core","health":true}]'
Obj = dict[str, Any]


def node(annotations: Obj | None = None, offered: str | None = "2") -> Obj:
    status = {"allocatable": {"nvidia.com/gpu": offered}} if offered is not None else {}
    notes = {key: text for key, text in ({REGISTER: CARDS} | (annotations or {})).items() if text is not None}
    return {"kind": "Node", "metadata": {"name": "n1", "annotations": notes}, "status": status}


def pod(
    name: str, annotations: Obj | None = None, *, node_name: str = "n1", phase: str = "Running", **more: Any
) -> Obj:
    limits = {"nvidia.com/gpu": "1"}
    spec: Obj = {"containers": [{"name": "c", "image": "none", "resources": {"limits": limits, "requests": limits}}]}
    spec |= {"nodeName": node_name} if node_name else {}
    metadata = {"name": name, "namespace": "default", "annotations": annotations or {}, **more}
    return {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def share(memory: int = 1000, cores: int = 0, card: str = "GPU-a") -> Obj:
    return {ALLOCATED: f"{card},NVIDIA,{memory},{cores}:;", PHASE: "success", "hami.io/vgpu-node": "n1"}


def ago(seconds: float) -> str:
    return str(int(time.time() - seconds))


def stamp(seconds: float) -> str:
    then = datetime.datetime.fromtimestamp(time.time() - seconds, datetime.UTC)
    return f"{then:%Y-%m-%dT%H:%M:%SZ}"


@asynccontextmanager
async def cluster(folder: Path, *objects: Obj) -> AsyncIterator[ApiClient]:
    async with ApiServer() as api, await connected(api, folder) as client:
        for each in objects:
            await create(client, each)
        yield client


async def create(client: ApiClient, document: Obj) -> None:
    places = {
        "Node": "/api/v1/nodes",
        "Pod": "/api/v1/namespaces/default/pods",
        "Service": "/api/v1/namespaces/default/services",
        "MutatingWebhookConfiguration": "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    }
    path = places[document["kind"]]
    api_version = "admissionregistration.k8s.io/v1" if "Webhook" in document["kind"] else "v1"
    made = {"apiVersion": api_version, **document}
    await client.request("POST", path, msgspec.json.encode(made))
    if "status" in document:
        body = msgspec.json.encode({"status": document["status"]})
        name = f"{path}/{document['metadata']['name']}/status"
        await client.request("PATCH", name, body, "application/merge-patch+json")


async def examined(client: ApiClient, **options: Any) -> Report:
    return await examine(client, REGISTRY, second_look_s=0.0, **options)


def told(report: Report, *, webhook: bool = False) -> list[tuple[str, str, str]]:
    """Severity, check and subject; the webhook apart unless it is what is looked at."""
    return [
        (each.severity.value, each.check, each.subject)
        for each in report.findings
        if webhook or each.check not in ("webhook", "certificate")
    ]


def of_gone() -> str:
    """A token of a pod that does not exist."""
    return f"{stamp(10)},default,gone"


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


def configuration(client_config: Obj, policy: str = "Ignore") -> Obj:
    webhook: Obj = {"name": "vgpu.hami.io", "admissionReviewVersions": ["v1"], "sideEffects": "None"}
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nothing"]}]
    webhook |= {"failurePolicy": policy, "clientConfig": client_config, "rules": rules}
    return {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "hami-webhook"}, "webhooks": [webhook]}


def pair(days: int = 365, *, host: str = "127.0.0.1", begins_days_ago: float = 0.0) -> make.CertificatePair:
    begins = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=begins_days_ago)
    return make.make_pair([host], begins, days)


@asynccontextmanager
async def serving(served: make.CertificatePair, folder: Path) -> AsyncIterator[int]:
    make.write_pair(served, folder)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / make.CERT_FILE, folder / make.KEY_FILE)
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


def bundle(of: make.CertificatePair) -> str:
    return base64.b64encode(of.ca_pem).decode()


MINE, ANOTHER = pair(), pair()
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
