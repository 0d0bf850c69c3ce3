"""A webhook that kube-apiserver does not trust is told (report B01): by readiness, one event, a metric."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Mapping
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from hami.certs import make
from hami.certs.reload import ServingContext
from hami.certs.trust import TrustWatch
from hami.obs import metrics

NOW = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
HOST = "hami.kube-system.svc"
MINE, OTHER = (make.make_pair([HOST], NOW, 30) for _ in range(2))
WILD = make.make_pair(["*.kube-system.svc"], NOW, 30)
STRANGE = make.make_pair(["elsewhere"], NOW, 30)


def chained() -> make.CertificatePair:
    """A root, an intermediate that the server shows, a leaf."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, each)]) for each in ("root", "middle", "leaf")]
    made = []
    for place in range(3):
        builder = x509.CertificateBuilder().subject_name(names[place]).issuer_name(names[max(place - 1, 0)])
        builder = builder.public_key(keys[place].public_key()).serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(NOW).not_valid_after(NOW + datetime.timedelta(days=30))
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        made.append(builder.sign(keys[max(place - 1, 0)], hashes.SHA256()).public_bytes(Encoding.PEM))
    key = keys[2].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return make.CertificatePair(made[0], b"", made[2] + made[1], key)


CHAINED = chained()


class Events:
    def __init__(self) -> None:
        self.told: list[str] = []

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
        assert warning
        self.told.append(f"{reason} {about['metadata']['name']}: {message}")


def configuration(bundle: bytes, **client: Any) -> dict[str, Any]:
    client = client or {"service": {"name": "hami", "namespace": "kube-system"}}
    ca = {"caBundle": base64.b64encode(bundle).decode()} if bundle else {}
    webhook = {"name": "vgpu.hami.io", "clientConfig": {**client, **ca}}
    return {"metadata": {"name": "hami-webhook"}, "webhooks": [webhook]}


def beside(found: dict[str, Any], name: str, service: str) -> dict[str, Any]:
    """The configuration with another webhook before ours."""
    client = {"service": {"name": service, "namespace": "kube-system"}}
    return {**found, "webhooks": [{"name": name, "clientConfig": client}, *found["webhooks"]]}


def watch(pair: make.CertificatePair, now: datetime.datetime = NOW) -> tuple[TrustWatch, Events]:
    serving, events = ServingContext(), Events()
    serving.load(pair.cert_pem, pair.key_pem, "a pair")
    return TrustWatch(serving, events, now=lambda: now), events


CASES: dict[str, tuple[make.CertificatePair, dict[str, Any], str]] = {
    "its own authority": (MINE, configuration(MINE.ca_pem), ""),
    "several, one of them its own": (MINE, configuration(OTHER.ca_pem + MINE.ca_pem), ""),
    "the certificate itself": (MINE, configuration(MINE.cert_pem), ""),
    "by an intermediate": (CHAINED, configuration(CHAINED.ca_pem), ""),
    "a wildcard": (WILD, configuration(WILD.ca_pem), ""),
    "a URL": (MINE, configuration(MINE.ca_pem, url=f"https://{HOST}:9443/webhook"), ""),
    "a URL without a bundle: the API server's own roots": (MINE, configuration(b"", url=f"https://{HOST}/webhook"), ""),
    "a Service without a bundle": (MINE, configuration(b""), "has no caBundle"),
    "another authority of the same name": (MINE, configuration(OTHER.ca_pem), "does not trust"),
    "garbage": (MINE, configuration(b"garbage"), "does not trust"),
    "a chain to nobody": (CHAINED, configuration(MINE.ca_pem), "does not trust"),
    "another host": (STRANGE, configuration(STRANGE.ca_pem), f"is not for {HOST}"),
    "a stranger's webhook beside it": (MINE, beside(configuration(MINE.ca_pem), "x.corp.com", "other"), ""),
    "another way to it beside it": (
        MINE,
        beside(configuration(MINE.ca_pem), "x.corp.com", "hami"),
        "x.corp.com: it has no caBundle",
    ),
    "a URL that is none": (MINE, configuration(MINE.ca_pem, url="https://[x/webhook"), "URL cannot be read"),
    "another URL": (MINE, configuration(MINE.ca_pem, url="https://10.0.0.1/webhook"), "is not for 10.0.0.1"),
}


@pytest.mark.parametrize("name", CASES)
def test_b01_judged_as_kube_apiserver_does(name: str) -> None:
    pair, found, problem = CASES[name]
    trust, events = watch(pair)
    assert trust.missing() == ""
    trust.on_webhook_configuration(found)
    assert problem in trust.missing()
    assert bool(trust.missing()) is bool(problem)
    assert bool(metrics.registry.get_sample_value("hami_scheduler_ca_bundle_right")) is not bool(problem)
    assert [each.partition(":")[0] for each in events.told] == (["WebhookUntrusted hami-webhook"] if problem else [])


def test_told_once_and_well_again_when_put_right() -> None:
    trust, events = watch(MINE)
    for _ in range(3):
        trust.on_webhook_configuration(configuration(OTHER.ca_pem))
        trust.look()
    assert len(events.told) == 1
    trust.on_webhook_configuration(configuration(MINE.ca_pem))
    assert trust.missing() == ""
    trust.on_webhook_configuration(None)
    assert trust.missing() == "", "nobody calls"


def test_a_certificate_that_ends_is_told_without_an_event_of_others() -> None:
    trust, _ = watch(MINE, NOW + datetime.timedelta(days=31))
    trust.on_webhook_configuration(configuration(MINE.ca_pem))
    assert "ended at 2026-07-01" in trust.missing()
