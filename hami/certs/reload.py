"""A TLS context that follows its files: new connections use a renewed certificate without a restart."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
from cryptography import x509

from hami.core.errors import CertificateError
from hami.obs import metrics

log = structlog.get_logger("hami.certs")


class ReloadingContext:
    """Holds one ssl.SSLContext for the life of the process and loads changed files into it.

    A pair that does not load keeps the old one in force (spec/ecosystem 2.6).
    """

    def __init__(self, cert_file: Path, key_file: Path) -> None:
        """Raises CertificateError when the first pair cannot be loaded."""
        self._cert_file = cert_file
        self._key_file = key_file
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.reload()

    def reload(self) -> None:
        """Loads the pair from its files. Raises CertificateError and changes nothing when it cannot."""
        try:
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trial.load_cert_chain(self._cert_file, self._key_file)
            certificate = x509.load_pem_x509_certificate(self._cert_file.read_bytes())
            self.context.load_cert_chain(self._cert_file, self._key_file)
        except (OSError, ValueError) as error:
            text = f"cannot load certificate {self._cert_file} with key {self._key_file}: {error}"
            raise CertificateError(text) from error
        metrics.certificate_not_after_seconds.set(certificate.not_valid_after_utc.timestamp())

    async def follow(self, changes: AsyncIterator[object]) -> None:
        """Reloads after each change that `changes` yields (watchfiles on the folders of the two files)."""
        async for _ in changes:
            try:
                self.reload()
                log.info("certificate reloaded", file=str(self._cert_file))
            except CertificateError as error:
                log.warning("certificate not reloaded, the old one stays in force", error=str(error))
