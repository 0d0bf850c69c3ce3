"""A running scheduler takes certificates and CA bundles that change (issue 8)."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from hami.apps.scheduler import Scheduler
from hami.certs import kept, make
from hami.core import keys
from tests.apps.certified import HOSTS, SECRETS, SELF_MADE, WEBHOOKS, World, aged, call, der_of
from tests.apps.rig import MERGE, Rig, value
from tests.tools.waiting import until_answered


async def test_the_first_replica_makes_a_certificate_and_all_serve_it(world: World) -> None:
    one, two = await asyncio.gather(world.replica(*SELF_MADE), world.replica(*SELF_MADE))
    await until_answered(lambda: world.bundle(), "a published bundle")
    bundle, state = await world.bundle(), await world.kept()
    assert state.trusted == bundle
    assert {await call(one, bundle), await call(two, bundle)} == {der_of(state.cert)}
    assert not state.next_cert
    assert x509.load_pem_x509_certificate(state.cert).public_key().curve.name == "secp256r1"  # type: ignore[union-attr]
    files = {kept.UPSTREAM_CA, make.CA_FILE, make.CERT_FILE, make.KEY_FILE}
    assert set((await world.rig.get(f"{SECRETS}/tls"))["data"]) == files


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
