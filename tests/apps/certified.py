"""Replicas that keep a certificate: its Secret, its webhook configuration, calls as kube-apiserver makes them."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl

from cryptography import x509
from yarl import URL

from hami.apps.scheduler import Scheduler
from hami.certs import kept
from tests.apps.rig import Rig

SECRETS = "/api/v1/namespaces/kube-system/secrets"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
HOSTS = ("127.0.0.1", "hami.kube-system.svc")


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
