"""The webhook: is it configured, is a ready pod behind it, is what it serves trusted, and for how long."""

from __future__ import annotations

import asyncio
import base64
import binascii
import datetime
import ssl
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

import msgspec
from cryptography import x509

from hami.core.keys import WEBHOOK_NAME
from hami.ctl.doctor.findings import Finding, Severity
from hami.ctl.doctor.snapshot import Snapshot, Webhook, hamis

WEBHOOK: Final = "webhook"
CERTIFICATE: Final = "certificate"
_SOON: Final = datetime.timedelta(days=30)
_DIAL_S: Final = 5.0
_PATCH_URL: Final = "hami certs patch --url https://HOST:PORT/webhook writes another one"
_PATCH: Final = "hami certs patch --ca-file ca.crt writes the authority into the configuration"


class Endpoint(msgspec.Struct, frozen=True):
    """Where kube-apiserver finds the webhook, and the name that the certificate must be for."""

    host: str
    port: int
    server_name: str


def endpoint_of(webhook: Webhook) -> Endpoint | None:
    """None where the configuration names neither URL nor Service. Raises ValueError for a URL that is none."""
    config = webhook.client_config
    if config.url:
        parts = urlsplit(config.url)
        return Endpoint(parts.hostname or "", parts.port or 443, parts.hostname or "")
    if config.service is not None:
        name = f"{config.service.name}.{config.service.namespace}.svc"
        return Endpoint(name, config.service.port, name)
    return None


async def check_webhook(snapshot: Snapshot, dial: Endpoint | None, dates: list[str]) -> list[Finding]:
    """Every check of webhooks. `dial` replaces the address (not the name) that is connected to; `dates` is given a line
    for each certificate that was seen."""
    if snapshot.configurations is None:
        return [Finding(Severity.NOTE, WEBHOOK, "webhook", "configurations cannot be read with these rights")]
    if not snapshot.configurations:
        advice = "install the chart, or look at why its MutatingWebhookConfiguration is gone"
        problem = f"no webhook {WEBHOOK_NAME} is configured: pods are not placed by HAMi"
        return [Finding(Severity.ERROR, WEBHOOK, "webhook", problem, advice)]
    findings: list[Finding] = []
    for configuration in snapshot.configurations:
        for webhook in hamis(configuration):
            findings += await _check_one(snapshot, configuration.metadata.name, webhook, dial, dates)
    return findings


async def _check_one(
    snapshot: Snapshot, name: str, webhook: Webhook, dial: Endpoint | None, dates: list[str]
) -> list[Finding]:
    subject = f"webhook {name}"
    try:
        endpoint = endpoint_of(webhook)
    except ValueError as error:
        problem = f"its URL {webhook.client_config.url!r} cannot be read: {error}"
        return [Finding(Severity.ERROR, WEBHOOK, subject, problem, _PATCH_URL)]
    if endpoint is None:
        return [Finding(Severity.ERROR, WEBHOOK, subject, "names neither a URL nor a Service", _PATCH)]
    findings = list(_service_findings(snapshot, subject, webhook))
    bundle, problems = _bundle(subject, webhook.client_config.ca_bundle, snapshot.unix_s, dates)
    findings += problems
    if dial is not None:
        endpoint = Endpoint(dial.host, dial.port, endpoint.server_name)
    return findings + await _connect(subject, endpoint, bundle, snapshot.unix_s, dates)


def _service_findings(snapshot: Snapshot, subject: str, webhook: Webhook) -> Iterator[Finding]:
    reference = webhook.client_config.service
    if reference is None:
        return
    title, key = f"Service {reference.namespace}/{reference.name}", (reference.namespace, reference.name)
    if key not in snapshot.services:
        return
    service = snapshot.services[key]
    if service is None:
        yield Finding(Severity.ERROR, WEBHOOK, subject, f"{title} does not exist", "install the chart anew")
        return
    selector = service.spec.selector or {}
    ready = [
        pod
        for pod in snapshot.pods
        if pod.metadata.namespace == reference.namespace
        and selector.items() <= pod.labels.items()
        and any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions or ())
    ]
    if selector and not ready:
        wanted = ",".join(f"{key}={value}" for key, value in sorted(selector.items()))
        yield Finding(
            Severity.ERROR,
            WEBHOOK,
            subject,
            f"no ready pod is behind {title}: new pods are {_effect(webhook)}",
            f"kubectl get pods -n {reference.namespace} -l {wanted}; the scheduler is ready when its lists are read",
        )


def _effect(webhook: Webhook) -> str:
    return "refused" if webhook.failure_policy == "Fail" else "created without HAMi"


def _bundle(subject: str, text: str, unix_s: float, dates: list[str]) -> tuple[bytes, list[Finding]]:
    """The authority's PEM, empty where there is none that can be used."""
    if not text:
        problem = "has no caBundle: the API server trusts public authorities only"
        return b"", [Finding(Severity.WARNING, CERTIFICATE, subject, problem, _PATCH)]
    try:
        pem = base64.b64decode(text, validate=True)
        authorities = x509.load_pem_x509_certificates(pem)
    except (binascii.Error, ValueError) as error:
        return b"", [Finding(Severity.ERROR, CERTIFICATE, subject, f"caBundle cannot be read: {error}", _PATCH)]
    dates += [_life(f"{subject}: an authority of caBundle", one) for one in authorities]
    judged = [list(_dates(subject, "caBundle's certificate", one, unix_s)) for one in authorities]
    # After a renewal the one before stays for a while; which of them signed what is served is looked at below.
    findings = [] if any(not each for each in judged) else [finding for each in judged for finding in each]
    return pem, findings


def _life(what: str, certificate: x509.Certificate) -> str:
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return f"{what} is valid from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC"


def _dates(subject: str, what: str, certificate: x509.Certificate, unix_s: float) -> Iterator[Finding]:
    now = datetime.datetime.fromtimestamp(unix_s, datetime.UTC)
    ends, begins = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    advice = "renew it: hami certs create, update the Secret, hami certs patch; or let cert-manager do it"
    if now >= ends:
        yield Finding(Severity.ERROR, CERTIFICATE, subject, f"{what} ended at {ends:%Y-%m-%d %H:%M} UTC", advice)
    elif now < begins:
        yield Finding(Severity.ERROR, CERTIFICATE, subject, f"{what} begins at {begins:%Y-%m-%d %H:%M} UTC", advice)
    elif ends - now < _SOON:
        problem = f"{what} ends in {(ends - now).days} days, at {ends:%Y-%m-%d %H:%M} UTC"
        yield Finding(Severity.WARNING, CERTIFICATE, subject, problem, advice)


async def _connect(subject: str, endpoint: Endpoint, bundle: bytes, unix_s: float, dates: list[str]) -> list[Finding]:
    anyone = ssl.create_default_context()
    anyone.check_hostname = False
    anyone.verify_mode = ssl.CERT_NONE
    try:
        served = x509.load_der_x509_certificate(await _served(endpoint, anyone))
    except (OSError, TimeoutError, ValueError) as error:
        # ValueError: of the host's name (UnicodeError), or of the certificate.
        return [_unreachable(subject, endpoint, error)]
    dates.append(_life(f"{subject}: the served certificate", served))
    findings = list(_dates(subject, "the served certificate", served, unix_s))
    if findings and findings[0].severity is Severity.ERROR:
        return findings
    try:
        await _served(endpoint, _as_api_server(bundle))
    except ssl.SSLError as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)
        problem = f"the certificate that {endpoint.host}:{endpoint.port} serves is not trusted by caBundle: {reason}"
        findings.append(Finding(Severity.ERROR, CERTIFICATE, subject, problem, _PATCH))
    except (OSError, TimeoutError) as error:
        findings.append(_unreachable(subject, endpoint, error))
    return findings


def _as_api_server(bundle: bytes) -> ssl.SSLContext:
    """Trusts as Go does: any certificate of the bundle is a root, and forms that RFC 5280 forbids are let through."""
    context = ssl.create_default_context(cadata=bundle.decode("ascii", "replace") if bundle else None)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VerifyFlags.VERIFY_X509_STRICT
    return context


async def _served(endpoint: Endpoint, context: ssl.SSLContext) -> bytes:
    """The certificate that is served. Raises OSError (ssl.SSLError included) and TimeoutError."""
    async with asyncio.timeout(_DIAL_S):
        _, writer = await asyncio.open_connection(
            endpoint.host, endpoint.port, ssl=context, server_hostname=endpoint.server_name
        )
        try:
            found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            return found
        finally:
            writer.transport.abort()


def _unreachable(subject: str, endpoint: Endpoint, error: Exception) -> Finding:
    inside = endpoint.host.endswith(".svc")
    problem = f"{endpoint.host}:{endpoint.port} is not reached from here: {error or type(error).__name__}"
    if inside:
        advice = (
            "normal outside the cluster. To look at the certificate: kubectl port-forward to the Service, then"
            " --webhook-address 127.0.0.1:PORT"
        )
        return Finding(Severity.NOTE, WEBHOOK, subject, problem, advice)
    return Finding(Severity.ERROR, WEBHOOK, subject, problem, "is the scheduler running and is the address right?")
