"""Tells kube-apiserver which authority signed the webhook's certificate, and where the webhook is."""

from __future__ import annotations

import base64
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec
from cryptography import x509

from hami.core.errors import CertificateError
from hami.core.lenient import decode_answer

CONFIGURATIONS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
JSON_PATCH: Final = "application/json-patch+json"


class Request(Protocol):
    """A raw API call; `kube.client.ApiClient.request` has this shape."""

    def __call__(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> Awaitable[bytes]: ...


class _Webhook(msgspec.Struct, rename="camel"):
    name: str
    client_config: dict[str, Any]
    failure_policy: str = ""


class _Configuration(msgspec.Struct):
    webhooks: list[_Webhook] = []


_decoder: Final = msgspec.json.Decoder(_Configuration)


def read_authority(path: Path) -> bytes:
    """A PEM authority file, checked. Raises CertificateError."""
    try:
        pem = path.read_bytes()
        x509.load_pem_x509_certificates(pem)
    except (OSError, ValueError) as error:
        raise CertificateError(f"{path} is no readable PEM certificate: {error}") from error
    return pem


async def patch_webhook(request: Request, name: str, ca_pem: bytes, *, url: str = "", failure_policy: str = "") -> bool:
    """Writes caBundle (and url, failurePolicy) into every webhook of the configuration; False if all was right.

    The patch tests each webhook's name at its place and what is replaced, so that a concurrent change fails the write
    (InvalidError) instead of being lost or hitting the wrong entry. Raises ApiError, TransportError.
    """
    path = f"{CONFIGURATIONS}/{quote(name, safe='')}"
    current = decode_answer(await request("GET", path), _decoder, path)
    bundle = base64.b64encode(ca_pem).decode()
    operations: list[dict[str, Any]] = []
    for place, webhook in enumerate(current.webhooks):
        wanted = {"caBundle": bundle, **({"url": url} if url else {})}
        if not url:
            wanted = {**webhook.client_config, **wanted}
        changes = [] if wanted == webhook.client_config else [_replace(place, "clientConfig", wanted)]
        if failure_policy and failure_policy != webhook.failure_policy:
            changes.append(_replace(place, "failurePolicy", failure_policy))
        if changes:
            operations.append(_test(place, "name", webhook.name))
            operations.append(_test(place, "clientConfig", webhook.client_config))
            operations += changes
    if operations:
        await request("PATCH", path, msgspec.json.encode(operations), JSON_PATCH)
    return bool(operations)


def _test(place: int, field: str, value: object) -> dict[str, Any]:
    return {"op": "test", "path": f"/webhooks/{place}/{field}", "value": value}


def _replace(place: int, field: str, value: object) -> dict[str, Any]:
    return {"op": "add", "path": f"/webhooks/{place}/{field}", "value": value}
