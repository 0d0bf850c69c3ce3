"""What a certificate says: who signed it, and for whom it is."""

from __future__ import annotations

import datetime
from collections.abc import Sequence

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

from hami.certs.hosts import spelled


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority's key signed the certificate, and its name is the certificate's issuer."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def system_now() -> datetime.datetime:
    """The time of this machine, in UTC."""
    return datetime.datetime.now(datetime.UTC)


def in_pem(pem: bytes) -> list[x509.Certificate]:
    """Each certificate once; none where the text cannot be read."""
    try:
        return list(dict.fromkeys(x509.load_pem_x509_certificates(pem)))
    except ValueError:
        return []


def is_trusted(chain: Sequence[x509.Certificate], roots: Sequence[x509.Certificate]) -> bool:
    """Whether the chain, the certificate itself first, leads to one of `roots`, as Go judges: any may be one."""
    rest = list(chain[1:])
    current = chain[0] if chain else None
    while current is not None:
        if any(current == root or is_signed_by(current, root) for root in roots):
            return True
        below = current
        current = next((each for each in rest if is_signed_by(below, each)), None)
        rest = [each for each in rest if each != current]
    return False


def not_in_time(certificate: x509.Certificate, now: datetime.datetime) -> str:
    """Why it is not valid now; empty if it is."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        return f"begins at {begins:%Y-%m-%d %H:%M} UTC"
    return f"ended at {ends:%Y-%m-%d %H:%M} UTC" if now >= ends else ""


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """DNS names and addresses that it is for, as `hosts.spelled` writes them."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return frozenset()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return frozenset(map(spelled, (*names.get_values_for_type(x509.DNSName), *addresses)))
