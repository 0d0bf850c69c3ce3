"""Does whoever reads the webhook configuration trust what is served? Told by readiness, event and metric (report B01).

kube-apiserver only logs that it does not: with failure policy Ignore, pods go on without us and nobody notices.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import structlog
from cryptography import x509

from hami.certs.hosts import spelled
from hami.certs.publish import ours
from hami.certs.reading import in_pem, is_trusted, names_of, not_in_time, system_now
from hami.certs.reload import ServingContext
from hami.core.keys import EVENT_WEBHOOK_UNTRUSTED
from hami.obs import metrics

CHECK_S: Final = 5.0

log = structlog.get_logger("hami.certs")


class Events(Protocol):
    """Where a mismatch is told; `kube.events.EventRecorder` has it."""

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None: ...


class TrustWatch:
    """Holds the newest webhook configuration against the certificate that is served."""

    def __init__(
        self, serving: ServingContext, events: Events, *, now: Callable[[], datetime.datetime] = system_now
    ) -> None:
        self._serving = serving
        self._events = events
        self._now = now
        self._configuration: Mapping[str, Any] | None = None
        self._problem = ""

    def missing(self) -> str:
        """What readiness says; empty while all is well or nothing is known."""
        return self._problem

    def on_webhook_configuration(self, found: Mapping[str, Any] | None) -> None:
        """The webhook configuration as it is now; None when it was deleted."""
        self._configuration = found
        self.look()

    async def run(self) -> None:
        """Looks again every few seconds, until cancelled: certificates change and end without an event."""
        while True:
            await asyncio.sleep(CHECK_S)
            self.look()

    def look(self) -> None:
        """Judges, and tells what is new."""
        if self._configuration is None:
            self._problem = ""
            return
        problem = next(_problems(self._configuration, self._serving.chain, self._now()), "")
        metrics.ca_bundle_right.set(not problem)
        if problem and problem != self._problem:
            log.error("webhook is not trusted: new pods are not placed by HAMi", why=problem)
            self._events.object_event(
                self._configuration, warning=True, reason=EVENT_WEBHOOK_UNTRUSTED, message=problem
            )
        self._problem = problem


def _problems(configuration: Mapping[str, Any], chain: bytes, now: datetime.datetime) -> Iterator[str]:
    """Why kube-apiserver would not accept the certificate.

    Without a caBundle it asks the roots of its own system: those may know a URL's host, and never a Service's name.
    """
    certificates = x509.load_pem_x509_certificates(chain)
    webhooks = [(each.get("name", ""), each.get("clientConfig") or {}) for each in configuration.get("webhooks") or ()]
    for name, client in (webhooks[place] for place in sorted(ours(webhooks))):
        try:
            host = _host(client)
        except ValueError as error:
            yield f"webhook {name}: its URL cannot be read: {error}"
            continue
        if host and not _is_for(certificates[0], host):
            yield f"webhook {name}: the served certificate is not for {host}"
        bundle = client.get("caBundle", "")
        if not bundle and not client.get("url"):
            yield f"webhook {name}: it has no caBundle that trusts the served certificate"
        if bundle and not _is_trusted(certificates, bundle):
            yield f"webhook {name}: its caBundle does not trust the served certificate"
    if problem := not_in_time(certificates[0], now):
        yield f"the served certificate {problem}"


def _host(client: Mapping[str, Any]) -> str:
    if client.get("url"):
        return urlsplit(client["url"]).hostname or ""
    service = client.get("service") or {}
    return f"{service['name']}.{service['namespace']}.svc" if service else ""


def _is_for(certificate: x509.Certificate, host: str) -> bool:
    host = spelled(host)
    return bool({host, "*." + host.partition(".")[2]} & names_of(certificate))


def _is_trusted(chain: list[x509.Certificate], bundle: str) -> bool:
    try:
        return is_trusted(chain, in_pem(base64.b64decode(bundle, validate=True)))
    except (binascii.Error, ValueError):
        return False
