"""What a Secret keeps for all schedulers of a release, and what its next state is (issue 8).

Data: `tls.crt`, `tls.key` are served; `ca.crt` holds every authority that clients shall trust; `next.crt`, `next.key`
wait until clients were seen to trust their authority, which is in `ca.crt` already. So a renewal takes two writes, and
at each moment whatever certificate any replica serves is trusted by whoever read `ca.crt`, or what it was before.
"""

from __future__ import annotations

import base64
import binascii
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from hami.certs.hosts import spelled
from hami.certs.make import CA_FILE, CERT_FILE, KEY_FILE, make_pair
from hami.certs.reading import in_pem, is_signed_by, names_of

UPSTREAM_CA: Final = "ca"
"""Key of the authority in a Secret of upstream's certificate jobs, which fail where it is missing: read where there is
no `ca.crt`, and written, so that either chart can follow the other on one Secret."""
NEXT_CERT: Final = "next.crt"
NEXT_KEY: Final = "next.key"
RENEW_AT: Final = 2 / 3
"""Share of its life after which a certificate is renewed."""


class Kept(msgspec.Struct, frozen=True):
    """PEM texts of one state of the Secret; empty where it has none."""

    trusted: bytes = b""
    cert: bytes = b""
    key: bytes = b""
    next_cert: bytes = b""
    next_key: bytes = b""


_FILES: Final = {"trusted": CA_FILE, "cert": CERT_FILE, "key": KEY_FILE, "next_cert": NEXT_CERT, "next_key": NEXT_KEY}


def from_data(data: Mapping[str, str] | None) -> Kept:
    """From a Secret's data (base64). What cannot be read counts as missing."""
    data = data or {}
    found = {field: _bytes(data.get(file, "")) for field, file in _FILES.items()}
    return Kept(**found | {"trusted": found["trusted"] or _bytes(data.get(UPSTREAM_CA, ""))})


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""


def to_data(kept: Kept) -> dict[str, str | None]:
    """As the data of a merge patch: None removes a key."""
    data = {
        file: base64.b64encode(pem).decode() if (pem := getattr(kept, field)) else None
        for field, file in _FILES.items()
    }
    return data | {UPSTREAM_CA: data[CA_FILE]}


def make_first(hosts: Sequence[str], now: datetime.datetime, days: int, trusted: bytes = b"") -> Kept:
    """A new pair, served at once. `trusted`: authorities of what others may still serve. Raises CertificateError."""
    pair = make_pair(hosts, now, days)
    return Kept(pair.ca_pem + joined(_living(trusted, now)), pair.cert_pem, pair.key_pem)


def is_usable(kept: Kept, hosts: Sequence[str], now: datetime.datetime) -> bool:
    """Whether what is served now is good for clients: whole, trusted by `ca.crt`, in time, for the first host."""
    return _good(kept.cert, kept.key, kept.trusted, hosts[:1], now)


def is_due(kept: Kept, hosts: Sequence[str], now: datetime.datetime) -> bool:
    """Whether it is time for another certificate: two thirds of its life are over, or it lacks a host."""
    return not _good(kept.cert, kept.key, kept.trusted, hosts, now) or now >= renewal_time(kept)


def renewal_time(kept: Kept) -> datetime.datetime:
    """When the served certificate's renewal is due. Only for a usable one."""
    certificate = x509.load_pem_x509_certificate(kept.cert)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begins + (ends - begins) * RENEW_AT


def authority_end(kept: Kept) -> datetime.datetime | None:
    """When the newest authority of the served certificate ends; None where there is none."""
    try:
        issuers = _issuers(kept.cert, kept.trusted)
    except ValueError:
        return None
    return max((each.not_valid_after_utc for each in issuers), default=None)


def is_staged(kept: Kept, hosts: Sequence[str], now: datetime.datetime) -> bool:
    """Whether another certificate waits that is good for all hosts."""
    return _good(kept.next_cert, kept.next_key, kept.trusted, hosts, now)


def stage(kept: Kept, hosts: Sequence[str], now: datetime.datetime, days: int) -> Kept:
    """The first write: a new pair waits, both authorities are trusted. Raises CertificateError."""
    pair = make_pair(hosts, now, days)
    trusted = joined(_issuers(kept.cert, kept.trusted)) + pair.ca_pem
    return msgspec.structs.replace(kept, trusted=trusted, next_cert=pair.cert_pem, next_key=pair.key_pem)


def promote(kept: Kept) -> Kept:
    """The second write: what waited is served. The authority before it stays trusted: a replica may serve it yet."""
    issuers = _issuers(kept.next_cert, kept.trusted)
    others = [each for each in in_pem(kept.trusted) if each not in issuers]
    return Kept(joined([*issuers, *others]), kept.next_cert, kept.next_key)


def _good(cert: bytes, key: bytes, trusted: bytes, hosts: Sequence[str], now: datetime.datetime) -> bool:
    try:
        certificate = x509.load_pem_x509_certificate(cert)
        own_key = serialization.load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    in_time = certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc
    return (
        own_key and in_time and names_of(certificate).issuperset(map(spelled, hosts)) and bool(_issuers(cert, trusted))
    )


def _issuers(cert: bytes, trusted: bytes) -> list[x509.Certificate]:
    """The authorities of `trusted` that signed the certificate."""
    certificate = x509.load_pem_x509_certificate(cert)
    return [each for each in in_pem(trusted) if is_signed_by(certificate, each)]


def _living(trusted: bytes, now: datetime.datetime) -> list[x509.Certificate]:
    return [each for each in in_pem(trusted) if now < each.not_valid_after_utc]


def joined(certificates: Iterable[x509.Certificate]) -> bytes:
    """As one PEM text."""
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)
