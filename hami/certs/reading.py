"""What a certificate says: who signed it, and for whom it is."""

from __future__ import annotations

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


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """DNS names and addresses that it is for, as `hosts.spelled` writes them."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return frozenset()
    addresses = map(str, names.get_values_for_type(x509.IPAddress))
    return frozenset(map(spelled, (*names.get_values_for_type(x509.DNSName), *addresses)))
