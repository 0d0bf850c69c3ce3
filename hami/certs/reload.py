"""TLS contexts that change in place: new connections use a renewed certificate without a restart."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

from hami.certs.reading import not_in_time, system_now
from hami.core.errors import CertificateError
from hami.obs import metrics

RETRY_S: Final = 60.0

log = structlog.get_logger("hami.certs")


class ServingContext:
    """Holds one ssl.SSLContext for the life of the process.

    A pair that does not load, or is not valid now, keeps the old one in force (spec/ecosystem 2.6).
    """

    def __init__(self, now: Callable[[], datetime.datetime] = system_now) -> None:
        self._now = now
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Tickets are to resume sessions, which the API server and kube-scheduler never do.
        self.context.num_tickets = 0
        self._served = b""
        self.chain = b""
        """PEM of what is served, the certificate itself first."""

    def load(self, cert_pem: bytes, key_pem: bytes, source: str) -> bool:
        """Serves this pair from the next connection on; False if it is served already.

        Raises CertificateError and changes nothing when it cannot be loaded.
        """
        pair = cert_pem + key_pem
        if pair == self._served:
            return False
        try:
            certificate = x509.load_pem_x509_certificate(cert_pem)
            self._check_time(certificate, source)
            with _as_file(pair) as path:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path)
                self.context.load_cert_chain(path)
        except (OSError, ValueError) as error:
            raise CertificateError(f"cannot load {source}: {error}") from error
        self._served, self.chain = pair, cert_pem
        metrics.certificate_not_after_seconds.set(certificate.not_valid_after_utc.timestamp())
        return True

    def _check_time(self, certificate: x509.Certificate, source: str) -> None:
        """Raises CertificateError where the pair is not valid now, and the one in force is."""
        problem = not_in_time(certificate, self._now())
        if problem and self.chain and not not_in_time(x509.load_pem_x509_certificate(self.chain), self._now()):
            raise CertificateError(f"{source} {problem}: what was served before stays in force")


class ReloadingContext(ServingContext):
    """Serves what two files hold."""

    def __init__(
        self,
        cert_file: Path,
        key_file: Path,
        *,
        now: Callable[[], datetime.datetime] = system_now,
        retry_s: float = RETRY_S,
    ) -> None:
        """Raises CertificateError when the first pair cannot be loaded."""
        super().__init__(now)
        self._retry_s = retry_s
        self._refused = False
        self._cert_file = cert_file
        self._key_file = key_file
        self.reload()

    def reload(self) -> None:
        """Loads the pair from its files. Raises CertificateError and changes nothing when it cannot."""
        source = f"certificate {self._cert_file} with key {self._key_file}"
        try:
            cert_pem, key_pem = self._cert_file.read_bytes(), self._key_file.read_bytes()
        except OSError as error:
            raise CertificateError(f"cannot load {source}: {error}") from error
        if self.load(cert_pem, key_pem, source):
            log.info("certificate loaded", file=str(self._cert_file))

    async def follow(self, changes: AsyncIterator[object]) -> None:
        """Reloads after each change that `changes` yields (watchfiles on the folders of the two files)."""
        again = asyncio.ensure_future(self._try_again())
        try:
            async for _ in changes:
                self._try_reload()
        finally:
            again.cancel()
            await asyncio.gather(again, return_exceptions=True)

    async def _try_again(self) -> None:
        """A pair that begins to be valid later changes no file then."""
        while True:
            await asyncio.sleep(self._retry_s)
            if self._refused:
                self._try_reload()

    def _try_reload(self) -> None:
        try:
            self.reload()
            self._refused = False
        except CertificateError as error:
            if not self._refused:
                log.warning("certificate not reloaded, the old one stays in force", error=str(error))
            self._refused = True


@contextlib.contextmanager
def _as_file(pem: bytes) -> Iterator[str]:
    """OpenSSL reads files only. This one lies in memory where the system can do that: no key is written to a disk."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(pem)
            file.flush()
            yield file.name
        return
    handle = os.memfd_create("hami-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(handle), "wb") as file:
            file.write(pem)
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)
