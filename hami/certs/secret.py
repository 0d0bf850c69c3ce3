"""Keeps the serving certificate in a Secret, so that all schedulers of a release serve the same one.

Whoever starts first makes the pair; who comes at the same time takes what the first one wrote (issue 8). The
authority's key is thrown away: a renewal makes a new authority, and `publish` tells kube-apiserver.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from hami.certs.make import CA_FILE, CERT_FILE, KEY_FILE, CertificatePair, make_pair
from hami.certs.publish import Request
from hami.core.errors import CertificateError, ConflictError, NotFoundError

MERGE_PATCH: Final = "application/merge-patch+json"
_RENEW_AT: Final = 2 / 3
"""Share of its life after which a certificate is made anew."""
_TRIES: Final = 5


class _Metadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Secret(msgspec.Struct):
    metadata: _Metadata
    data: dict[str, str] | None = None


async def ensure_pair(
    request: Request, namespace: str, name: str, hosts: Sequence[str], now: datetime.datetime, days: int
) -> CertificatePair:
    """The pair in the Secret if it is good for `hosts` and young enough, else a new one, written there.

    The Secret is made where it is missing. `ca_key_pem` of the answer is empty. Raises CertificateError, ApiError,
    TransportError.
    """
    for _ in range(_TRIES):
        found = await _read(request, namespace, name)
        if found is not None and (kept := _usable(found, hosts, now)):
            return kept
        made = msgspec.structs.replace(make_pair(hosts, now, days), ca_key_pem=b"")
        try:
            await _write(request, namespace, name, made, found)
        except ConflictError:
            # Another replica was first: its pair is as good.
            continue
        return made
    raise CertificateError(f"Secret {namespace}/{name} changed at every try to write it")


def _path(namespace: str, name: str = "") -> str:
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/secrets"
    return f"{path}/{quote(name, safe='')}" if name else path


async def _read(request: Request, namespace: str, name: str) -> _Secret | None:
    try:
        return msgspec.json.decode(await request("GET", _path(namespace, name)), type=_Secret)
    except NotFoundError:
        return None


async def _write(request: Request, namespace: str, name: str, pair: CertificatePair, found: _Secret | None) -> None:
    files = {CA_FILE: pair.ca_pem, CERT_FILE: pair.cert_pem, KEY_FILE: pair.key_pem}
    data = {file: base64.b64encode(pem).decode() for file, pem in files.items()}
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    if found is None:
        body = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata, "data": data}
        await request("POST", _path(namespace), msgspec.json.encode(body))
        return
    patch = {"metadata": {"resourceVersion": found.metadata.resource_version}, "data": data}
    await request("PATCH", _path(namespace, name), msgspec.json.encode(patch), MERGE_PATCH)


def _usable(secret: _Secret, hosts: Sequence[str], now: datetime.datetime) -> CertificatePair | None:
    data = secret.data or {}
    try:
        ca, cert, key = (base64.b64decode(data[file], validate=True) for file in (CA_FILE, CERT_FILE, KEY_FILE))
        certificate = x509.load_pem_x509_certificate(cert)
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
        its_own_key = serialization.load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (KeyError, ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature, UnsupportedAlgorithm):
        return None
    served = {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not its_own_key or not served.issuperset(hosts) or now >= begins + (ends - begins) * _RENEW_AT:
        return None
    return CertificatePair(ca, b"", cert, key)
