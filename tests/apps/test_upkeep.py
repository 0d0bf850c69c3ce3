"""A running scheduler takes device configurations, certificates and CA bundles that change (issues 6, 8)."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from yarl import URL

from hami.apps.scheduler import Scheduler
from hami.certs import kept, make
from hami.core import keys
from hami.obs import metrics
from tests.apps.rig import MERGE, Obj, Rig, node, rigged
from tests.tools.waiting import until_answered

CONFIG_MAPS = "/api/v1/namespaces/kube-system/configmaps"
SECRETS = "/api/v1/namespaces/kube-system/secrets"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HOSTS = ("127.0.0.1", "hami.kube-system.svc")
RENAMED = "nvidia: {resourceCountName: corp.com/gpu, resourceMemoryName: corp.com/mem, defaultMemory: 512}"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(tmp_path) as found:
        yield found


def value(metric: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(metric, labels) or 0.0


def asking(name: str, **limits: str) -> Obj:
    resources = {key.replace("__", "/").replace("_", "."): text for key, text in limits.items()}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "image": "none", "resources": {"limits": resources}}]},
    }


async def placed(rig: Rig, replica: Scheduler, pod: Obj) -> list[str] | None:
    """Nodes that `/filter` answers with."""
    answer = await rig.call(replica, "filter", {"Pod": pod, "NodeNames": ["n1"]})
    found: list[str] | None = answer["NodeNames"]
    return found


async def scheduler_of(rig: Rig, replica: Scheduler, pod: Obj) -> str:
    """The scheduler that the webhook gives a pod; empty if it leaves it alone."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "operation": "CREATE", "namespace": "default", "object": pod},
    }
    response = (await rig.call(replica, "webhook", review))["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if response.get("patch") else []
    return next((each["value"] for each in patch if each["path"] == "/spec/schedulerName"), "")


class Source:
    """Where the device configuration comes from."""

    def __init__(self, rig: Rig, folder: Path, kind: str) -> None:
        self._rig = rig
        self._file = folder / "device-config.yaml"
        self.kind = kind

    async def flags(self) -> list[str]:
        if self.kind == "file":
            return []
        body = {"metadata": {"name": "hami-device"}, "data": {"device-config.yaml": "nvidia: {deviceSplitCount: 10}"}}
        await self._rig.client.request("POST", CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **body})
        return ["--device-config-map=kube-system/hami-device"]

    async def write(self, text: str) -> None:
        if self.kind == "file":
            await asyncio.to_thread(self._file.write_text, text)
        else:
            body = {"data": {"device-config.yaml": text}}
            await self._rig.client.request("PATCH", f"{CONFIG_MAPS}/hami-device", body, content_type=MERGE)


@pytest.mark.parametrize("kind", ["file", "ConfigMap"])
async def test_another_device_configuration_holds_without_a_restart(rig: Rig, tmp_path: Path, kind: str) -> None:
    """Renamed resources: webhook, filter, registration and default of memory follow together."""
    source = Source(rig, tmp_path, kind)
    offered = node("n1", cards=1)
    offered["status"]["allocatable"] |= {"corp.com/gpu": "10", "nvidia.com/gpu": "10"}
    await rig.cluster.apply(offered)
    replica = await rig.replica(*await source.flags())
    old, new = asking("old", nvidia_com__gpu="1"), asking("new", corp_com__gpu="1")
    assert await scheduler_of(rig, replica, old) == "hami-scheduler"
    assert await scheduler_of(rig, replica, new) == ""
    applied = value("hami_scheduler_device_config_reloads_total", outcome="applied")

    await source.write(RENAMED)
    await rig.until(
        lambda: value("hami_scheduler_device_config_reloads_total", outcome="applied") > applied,
        "another configuration",
    )
    assert await scheduler_of(rig, replica, new) == "hami-scheduler"
    assert await scheduler_of(rig, replica, old) == ""
    assert await placed(rig, replica, new) == ["n1"]
    claim = replica.world.ledger.get("uid-new")
    assert claim is not None
    assert [use.memory_mib for _, use in claim.charges] == [512], "the new default of memory"

    refused = value("hami_scheduler_device_config_reloads_total", outcome="refused")
    await source.write("nvidia: {defaultMemry: 5}")
    await rig.until(
        lambda: value("hami_scheduler_device_config_reloads_total", outcome="refused") > refused, "a refusal"
    )
    assert value("hami_scheduler_device_config_current") == 0
    assert await scheduler_of(rig, replica, new) == "hami-scheduler", "the last good one is in force"
    if kind == "ConfigMap":
        await until_answered(lambda: config_map_told(rig), "an event on the ConfigMap")

    await source.write("nvidia: {deviceSplitCount: 10}")
    await rig.until(lambda: value("hami_scheduler_device_config_current") == 1, "a good one")
    assert await scheduler_of(rig, replica, old) == "hami-scheduler"
    assert await scheduler_of(rig, replica, new) == ""


async def config_map_told(rig: Rig) -> bool:
    events = (await rig.get("/api/v1/namespaces/kube-system/events"))["items"]
    return any(
        event["reason"] == keys.EVENT_INVALID_CONFIGURATION
        and event["involvedObject"]["kind"] == "ConfigMap"
        and "nvidia.defaultMemry: unknown key; did you mean defaultMemory?" in event["message"]
        for event in events
    )


async def test_pods_that_were_refused_are_tried_again_under_other_rules(rig: Rig, tmp_path: Path) -> None:
    await rig.cluster.apply(node("n1", cards=1))
    source = Source(rig, tmp_path, "file")
    replica = await rig.replica()
    too_much = asking("big", nvidia_com__gpu="1", nvidia_com__gpumem="100")
    await source.write("nvidia: {memoryFactor: 1000}")
    await until_answered(lambda: refused(rig, replica, too_much), "100 units of 1,000 MiB are more than the card has")
    await source.write("nvidia: {memoryFactor: 10}")
    await until_answered(lambda: woken(rig), "a node write that wakes refused pods")
    assert await placed(rig, replica, too_much) == ["n1"]


async def refused(rig: Rig, replica: Scheduler, pod: Obj) -> bool:
    answer = await rig.call(replica, "filter", {"Pod": pod, "NodeNames": ["n1"]})
    return not answer["NodeNames"]


async def woken(rig: Rig) -> bool:
    return keys.ROOM_FREED in (await rig.the_node("n1"))["metadata"]["annotations"]


# Certificates


class World:
    """A Secret, a webhook configuration, and replicas that keep both."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.replicas: list[Scheduler] = []

    async def configure(self) -> None:
        webhook = {
            "name": "vgpu.hami.io",
            "clientConfig": {"service": {"namespace": "kube-system", "name": "hami", "path": "/webhook"}},
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Ignore",
        }
        body = {"kind": "MutatingWebhookConfiguration", "metadata": {"name": "hami-webhook"}, "webhooks": [webhook]}
        await self.rig.client.request("POST", WEBHOOKS, {"apiVersion": "admissionregistration.k8s.io/v1", **body})

    async def keep(self, state: kept.Kept) -> None:
        data = {file: text for file, text in kept.to_data(state).items() if text}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "tls"}, "data": data}
        await self.rig.client.request("POST", SECRETS, body)

    async def kept(self) -> kept.Kept:
        return kept.from_data((await self.rig.get(f"{SECRETS}/tls"))["data"])

    async def replica(self, *flags: str, settle: str = "1s") -> Scheduler:
        fixed = ["--http_bind=https://127.0.0.1:0", "--tls-secret=kube-system/tls", f"--certificate-settle={settle}"]
        fixed += ["--webhook-configuration=hami-webhook"]
        replica = await self.rig.replica(*fixed, *flags)
        self.replicas.append(replica)
        return replica

    async def bundle(self) -> bytes:
        found = await self.rig.get(f"{WEBHOOKS}/hami-webhook")
        return base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", ""))


@pytest.fixture
async def world(rig: Rig) -> World:
    found = World(rig)
    await found.configure()
    return found


async def call(replica: Scheduler, bundle: bytes) -> bytes:
    """One review over a new connection, verified by the bundle; the served certificate. Raises ssl.SSLError."""
    trust = ssl.create_default_context(cadata=bundle.decode())
    body = b'{"apiVersion":"admission.k8s.io/v1","request":{"uid":"u","operation":"UPDATE","object":{}}}'
    url = URL(replica.listeners[-1].url)
    reader, writer = await asyncio.open_connection(url.host, url.port, ssl=trust, server_hostname="127.0.0.1")
    try:
        head = f"POST /webhook HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n"
        writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        answer = await reader.read()
        der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["response"]["allowed"] is True
    return der


def der_of(pem: bytes) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


def aged(hours: float = 20.0, days: int = 1) -> kept.Kept:
    """A pair of 24 hours, 20 of them gone: renewal is due, and it is good for 4 hours."""
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=hours)
    return kept.make_first(HOSTS, began, days)


SELF_MADE = (*(f"--certificate-host={host}" for host in HOSTS), "--certificate-days=90")


async def test_the_first_replica_makes_a_certificate_and_all_serve_it(world: World) -> None:
    one, two = await asyncio.gather(world.replica(*SELF_MADE), world.replica(*SELF_MADE))
    await until_answered(lambda: world.bundle(), "a published bundle")
    bundle, state = await world.bundle(), await world.kept()
    assert state.trusted == bundle
    assert {await call(one, bundle), await call(two, bundle)} == {der_of(state.cert)}
    assert not state.next_cert
    assert x509.load_pem_x509_certificate(state.cert).public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
    assert set((await world.rig.get(f"{SECRETS}/tls"))["data"]) == {make.CA_FILE, make.CERT_FILE, make.KEY_FILE}


async def test_renewal_fails_no_call_of_clients_that_read_the_bundle(world: World) -> None:
    """Two replicas, a stream of calls to both by a client that trusts what the configuration said a moment before."""
    old = aged()
    await world.keep(old)
    # The second changes the certificate, long after both can be called; the first would wait longer than the test.
    replicas = [await world.replica(*SELF_MADE, settle=settle) for settle in ("1h", "10s")]
    await until_answered(lambda: world.bundle(), "a published bundle")
    served: list[set[bytes]] = [set(), set()]
    calls, failures = 0, list[str]()
    deadline_s = asyncio.get_running_loop().time() + 120

    async def one_call(place: int, bundle: bytes) -> None:
        try:
            served[place].add(await call(replicas[place], bundle))
        except (OSError, ssl.SSLError) as error:
            failures.append(str(error))

    while not all(len(each) == 2 for each in served) and asyncio.get_running_loop().time() < deadline_s:
        # Read before, used after: kube-apiserver's own copy is late, too.
        bundle = await world.bundle()
        await asyncio.gather(*(one_call(place, bundle) for place in (0, 1) for _ in range(4)))
        calls += 8
    state, bundle = await world.kept(), await world.bundle()
    for place in (0, 1):
        assert await call(replicas[place], bundle) == der_of(state.cert)
    print(f"{calls} calls during the renewal, {len(failures)} failed")
    assert failures == []
    assert served == [{der_of(old.cert), der_of(state.cert)}] * 2
    assert not state.next_cert
    assert state.trusted == bundle
    life = x509.load_pem_x509_certificate(state.cert)
    assert life.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > datetime.timedelta(days=89)
    # Negative control: who never looked at the bundle again fails now.
    with pytest.raises(ssl.SSLCertVerificationError):
        await call(replicas[0], old.trusted)


async def test_an_edited_bundle_is_put_right_and_a_deleted_configuration_stays_away(world: World) -> None:
    await world.replica(*SELF_MADE)
    await until_answered(lambda: world.bundle(), "a published bundle")
    right = await world.bundle()
    foreign = base64.b64encode(make.make_pair(["x"], datetime.datetime.now(datetime.UTC), 1).ca_pem).decode()
    for wrong in (foreign, ""):
        patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": wrong}]
        body = json.dumps(patch)
        await world.rig.client.request(
            "PATCH", f"{WEBHOOKS}/hami-webhook", json.loads(body), content_type="application/json-patch+json"
        )
        await until_answered(lambda: same_bundle(world, right), "the right bundle")
    assert value("hami_scheduler_ca_bundle_right") == 1
    await until_answered(lambda: repair_told(world.rig), "an event on the configuration")
    await world.rig.client.request("DELETE", f"{WEBHOOKS}/hami-webhook")
    await world.rig.until(lambda: value("hami_scheduler_ca_bundle_right") == 0, "a metric that says so")
    assert (await world.rig.get(WEBHOOKS))["items"] == []
    await world.configure()
    await until_answered(lambda: same_bundle(world, right), "the right bundle in the new configuration")


async def same_bundle(world: World, right: bytes) -> bool:
    return await world.bundle() == right


async def repair_told(rig: Rig) -> bool:
    events = (await rig.get("/api/v1/events"))["items"]
    return any(
        each["reason"] == keys.EVENT_WEBHOOK_REPAIRED and each["involvedObject"]["name"] == "hami-webhook"
        for each in events
    )


async def test_a_secret_of_somebody_else_is_followed_and_never_written(world: World) -> None:
    now = datetime.datetime.now(datetime.UTC)
    first, second = (kept.make_first(HOSTS, now, 30) for _ in range(2))
    await world.keep(first)
    replica = await world.replica()
    assert await call(replica, first.trusted) == der_of(first.cert)
    body = {"data": kept.to_data(second)}
    await world.rig.client.request("PATCH", f"{SECRETS}/tls", body, content_type=MERGE)
    await until_answered(lambda: serves(replica, second), "the other certificate")
    await until_answered(lambda: same_bundle(world, second.trusted), "its authority in the configuration")
    assert await world.kept() == second
    await world.rig.client.request("PATCH", f"{SECRETS}/tls", {"data": {"tls.crt": "AAAA"}}, content_type=MERGE)
    assert await serves(replica, second), "what cannot be loaded changes nothing"


async def serves(replica: Scheduler, state: kept.Kept) -> bool:
    try:
        return await call(replica, state.trusted) == der_of(state.cert)
    except ssl.SSLError:
        return False


async def test_mounted_files_are_followed_as_kubelet_swaps_them(rig: Rig, tmp_path: Path) -> None:
    """cert-manager or an own Secret: kubelet writes a new folder and turns the link `..data` to it."""
    now = datetime.datetime.now(datetime.UTC)
    first, second = (make.make_pair(["127.0.0.1"], now, 30) for _ in range(2))
    mount = tmp_path / "tls"

    def project(pair: make.CertificatePair, version: str) -> None:
        make.write_pair(pair, mount / version)
        (mount / "..tmp").symlink_to(version)
        (mount / "..tmp").replace(mount / "..data")
        for file in (make.CERT_FILE, make.KEY_FILE):
            if not (mount / file).is_symlink():
                (mount / file).symlink_to(f"..data/{file}")

    await asyncio.to_thread(project, first, "..one")
    flags = [f"--cert_file={mount / make.CERT_FILE}", f"--key_file={mount / make.KEY_FILE}"]
    replica = await rig.replica("--http_bind=https://127.0.0.1:0", *flags)
    assert await call(replica, first.ca_pem) == der_of(first.cert_pem)
    await asyncio.to_thread(project, second, "..two")
    state = kept.Kept(second.ca_pem, second.cert_pem)
    await until_answered(lambda: serves(replica, state), "the other pair")
    with pytest.raises(ssl.SSLCertVerificationError):
        await call(replica, first.ca_pem)


async def test_a_webhook_that_nobody_trusts_is_not_ready_and_told(world: World, tmp_path: Path) -> None:
    """B01, where the certificate is somebody else's: nothing is written, and it cannot be overlooked."""
    pair = make.make_pair(HOSTS, datetime.datetime.now(datetime.UTC), 30)
    await asyncio.to_thread(make.write_pair, pair, tmp_path / "tls")
    await write_bundle(world, pair.ca_pem)
    flags = [f"--cert_file={tmp_path}/tls/tls.crt", f"--key_file={tmp_path}/tls/tls.key"]
    flags += ["--http_bind=https://127.0.0.1:0", "--webhook-configuration=hami-webhook"]
    replica = await world.rig.replica(*flags)
    await world.rig.until(lambda: value("hami_scheduler_ca_bundle_right") == 1, "a look at the configuration")
    foreign = make.make_pair(["x"], datetime.datetime.now(datetime.UTC), 1).ca_pem
    await write_bundle(world, foreign)
    await world.rig.until(lambda: "does not trust the served certificate" in replica.missing(), "not ready")
    await until_answered(lambda: untrusted_told(world.rig), "an event on the configuration")
    assert await world.bundle() == foreign, "somebody else's"
    await write_bundle(world, pair.ca_pem)
    await world.rig.until(lambda: replica.missing() == "", "ready again")


async def write_bundle(world: World, pem: bytes) -> None:
    operation = {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": base64.b64encode(pem).decode()}
    await world.rig.client.request(
        "PATCH", f"{WEBHOOKS}/hami-webhook", [operation], content_type="application/json-patch+json"
    )


async def untrusted_told(rig: Rig) -> bool:
    events = (await rig.get("/api/v1/events"))["items"]
    return any(each["reason"] == keys.EVENT_WEBHOOK_UNTRUSTED for each in events)


async def test_objects_that_do_not_concern_us_are_never_written(world: World) -> None:
    """B56: 100 pods and 5 nodes without devices, two foreign objects of each followed kind, everything switched on."""
    rig = world.rig
    for number in range(5):
        plain = node(f"cpu{number}")
        plain["metadata"]["annotations"] = {}
        await rig.cluster.apply(plain)
    for number in range(100):
        spec = {"containers": [{"name": "c", "image": "none"}], "nodeName": f"cpu{number % 5}"}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{number}"}, "spec": spec}
        await rig.client.request("POST", "/api/v1/namespaces/default/pods", body)
    for name in ("foreign", "hami-device"):
        data = {"device-config.yaml": "nvidia: {deviceSplitCount: 10}"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
        await rig.client.request("POST", CONFIG_MAPS, body)
    await world.replica(*SELF_MADE, "--device-config-map=kube-system/hami-device")
    await until_answered(lambda: world.bundle(), "a published bundle")
    applied = value("hami_scheduler_device_config_reloads_total", outcome="applied")
    body = {"data": {"device-config.yaml": "nvidia: {defaultMemory: 1}"}}
    await rig.client.request("PATCH", f"{CONFIG_MAPS}/hami-device", body, content_type=MERGE)
    await rig.until(
        lambda: value("hami_scheduler_device_config_reloads_total", outcome="applied") > applied, "kopf at work"
    )
    writes = [each for each in rig.api.seen if each.verb not in ("get", "list", "watch")]
    ours = [each for each in writes if "hami-sim" not in each.user_agent]
    assert {(each.verb, each.resource, each.name) for each in ours} <= {
        ("create", "secrets", ""),
        ("create", "secrets", "tls"),
        ("patch", "mutatingwebhookconfigurations", "hami-webhook"),
    }
    assert ours, "the scheduler's own writes are seen"
