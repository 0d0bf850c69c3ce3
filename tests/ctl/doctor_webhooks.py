"""Webhooks for `hami doctor`: certificates, configurations, and who serves them."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hami.certs import make
from tests.ctl.doctor_clusters import (
    Obj,
)


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
