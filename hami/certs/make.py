"""Makes a CA and a serving certificate for webhook and extender (EC P-256, as fast handshakes need; design 6)."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.certs.hosts import checked, is_address
from hami.core.errors import CertificateError

CA_FILE: Final = "ca.crt"
CA_KEY_FILE: Final = "ca.key"
CERT_FILE: Final = "tls.crt"
KEY_FILE: Final = "tls.key"
BACKDATE: Final = datetime.timedelta(hours=1)
"""Clocks of other machines may be behind: other replicas would make another certificate, the API server refuse it."""


class CertificatePair(msgspec.Struct, frozen=True):
    """PEM texts: authority, its key, serving certificate, its key."""

    ca_pem: bytes
    ca_key_pem: bytes
    cert_pem: bytes
    key_pem: bytes


def make_pair(hosts: Sequence[str], now: datetime.datetime, lifetime_days: int) -> CertificatePair:
    """A new authority and a serving certificate for `hosts` (DNS names and addresses). Raises CertificateError."""
    if not hosts:
        raise CertificateError("a certificate needs at least one host name or address: give --host")
    hosts = [checked(host) for host in hosts]
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hami-webhook-ca")])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    ends = now + datetime.timedelta(days=lifetime_days)
    ca = (
        _builder(ca_name, ca_name, ca_key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    cert = (
        _builder(name, ca_name, key.public_key(), now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_san(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    return CertificatePair(ca.public_bytes(pem), _key_pem(ca_key), cert.public_bytes(pem), _key_pem(key))


def write_pair(pair: CertificatePair, folder: Path) -> None:
    """Writes ca.crt, ca.key (if there is one), tls.crt and tls.key: all of them, or none where the disk is full.

    Of two at once one is after the other, so that the files in the folder belong together. Raises CertificateError.
    """
    files = {CA_FILE: pair.ca_pem, CA_KEY_FILE: pair.ca_key_pem, CERT_FILE: pair.cert_pem, KEY_FILE: pair.key_pem}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone_in(folder):
            _write_all(folder, {name: content for name, content in files.items() if content})
    except OSError as error:
        raise CertificateError(f"cannot write certificates to {folder}: {error}") from error


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """The folder itself is the lock, so that nothing is left behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network file systems lock no folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write_all(folder: Path, files: Mapping[str, bytes]) -> None:
    """All contents are on the disk before the first file has its name. A part that a killed process left goes first:
    whoever made it chose its mode, or where it leads."""
    parts = {folder / f".{name}.part": folder / name for name in files}
    try:
        for part, final in parts.items():
            part.unlink(missing_ok=True)
            mode = 0o600 if final.suffix == ".key" else 0o644
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(files[final.name])
                file.flush()
                os.fsync(file.fileno())
        for part, final in parts.items():
            part.replace(final)
    finally:
        for part in parts:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(ends)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _san(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
