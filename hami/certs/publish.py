"""Tells kube-apiserver which authority signed the webhook's certificate, and where the webhook is."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

import msgspec
from cryptography import x509

from hami.core.errors import CertificateError
from hami.core.keys import WEBHOOK_NAME
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


def ours(webhooks: Sequence[tuple[str, Mapping[str, Any]]]) -> frozenset[int]:
    """Places of the webhooks that are HAMi's, from the name and clientConfig of each.

    Those of HAMi's name, and whatever leads to where they do; all where none has that name: then the configuration was
    made by hand for HAMi. What somebody else put beside ours stays as it is.
    """
    named = {place for place, (name, _) in enumerate(webhooks) if name == WEBHOOK_NAME}
    if not named:
        return frozenset(range(len(webhooks)))
    targets = [_target(webhooks[place][1]) for place in named]
    return frozenset(named | {place for place, (_, config) in enumerate(webhooks) if _target(config) in targets})


def _target(client_config: Mapping[str, Any]) -> object:
    service = client_config.get("service") or {}
    return (service.get("namespace"), service.get("name")) if service else client_config.get("url")


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
    """Writes caBundle (and url, failurePolicy) into HAMi's webhooks of the configuration; False if all was right.

    The patch tests each webhook's name at its place and what is replaced, so that a concurrent change fails the write
    (InvalidError) instead of being lost or hitting the wrong entry. Raises ApiError, TransportError.
    """
    path = f"{CONFIGURATIONS}/{quote(name, safe='')}"
    current = decode_answer(await request("GET", path), _decoder, path)
    bundle = base64.b64encode(ca_pem).decode()
    operations: list[dict[str, Any]] = []
    for place in sorted(ours([(each.name, each.client_config) for each in current.webhooks])):
        webhook = current.webhooks[place]
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
