"""Certificates and kubeconfigs of a throw-away cluster: one authority, EC P-256, valid for a day."""

from __future__ import annotations

import base64
import dataclasses
import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = datetime.timedelta(days=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM files."""

    cert: Path
    key: Path


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Make a private key and write it as PEM, readable by its owner only."""
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return key


def write_public_key(key: ec.EllipticCurvePrivateKey, path: Path) -> None:
    """Write the public half of `key` as PEM."""
    public = key.public_key()
    path.write_bytes(public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))


def subject(common_name: str, organizations: Sequence[str] = ()) -> x509.Name:
    """X.509 subject; kube-apiserver reads CN as the user name and each O as a group."""
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, name) for name in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class Authority:
    """The certificate authority that signs servers and clients of one cluster."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cert = folder / "ca.crt"
        self.key_file = folder / "ca.key"
        self._key = write_key(self.key_file)
        self._name = subject("hami-test-ca")
        certificate = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, common_name: str, organizations: Sequence[str] = (), hosts: Sequence[str] = ()) -> Pair:
        """Sign a certificate for a client (no hosts) or a server that is reached under `hosts`."""
        pair = Pair(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        key = write_key(pair.key)
        usage = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(subject(common_name, organizations), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        pair.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def kubeconfig(self, path: Path, server: str, who: Pair | str) -> Path:
        """Write a kubeconfig with everything inline, so that the file alone is enough; a text is a bearer token."""
        user = {"token": who} if isinstance(who, str) else _credentials(who)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "hami", "cluster": {"server": server, "certificate-authority-data": _inline(self.cert)}}
            ],
            "users": [{"name": "user", "user": user}],
            "contexts": [{"name": "hami", "context": {"cluster": "hami", "user": "user"}}],
            "current-context": "hami",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path

    def _builder(self, name: x509.Name, public_key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + VALIDITY)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )


def _key_usage(sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _credentials(pair: Pair) -> dict[str, str]:
    return {"client-certificate-data": _inline(pair.cert), "client-key-data": _inline(pair.key)}


def _inline(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
