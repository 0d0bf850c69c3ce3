"""Settings of what a scheduler keeps right while it runs: device configuration, certificate, webhook configuration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from hami.certs import hosts
from hami.config import flags
from hami.config.flags import Flag
from hami.core.errors import CertificateError, ConfigError


class ObjectName(msgspec.Struct, frozen=True):
    """An object in a namespace."""

    namespace: str
    name: str


class UpkeepSettings(msgspec.Struct, frozen=True):
    """None and empty: not followed, not kept."""

    device_config_map: ObjectName | None = None
    tls_secret: ObjectName | None = None
    certificate_hosts: tuple[str, ...] = ()
    certificate_days: int = 3650
    certificate_settle_s: float = 60.0
    webhook_configuration: str = ""


FLAGS: Final = (
    Flag(
        "device-config-map",
        "ConfigMap that device-config.yaml comes from: followed without restart, instead of the file",
        "",
        metavar="NAMESPACE/NAME",
    ),
    Flag(
        "tls-secret",
        "Secret with tls.crt and tls.key: served, and followed without restart",
        "",
        metavar="NAMESPACE/NAME",
    ),
    Flag(
        "certificate-host",
        "name or address that a self-made certificate is for, repeatable: it is kept in --tls-secret and renewed there",
        (),
        repeatable=True,
        metavar="HOST",
    ),
    Flag("certificate-days", "days until a self-made certificate ends", 3650, flags.whole(1, 36_500), metavar="N"),
    Flag(
        "certificate-settle",
        "how long the webhook configuration must have trusted a renewed certificate before it is served",
        60.0,
        flags.duration_s,
        metavar="DURATION",
    ),
    Flag(
        "webhook-configuration",
        "MutatingWebhookConfiguration that must trust the certificate: its CA bundle is kept to ca.crt of --tls-secret;"
        " with --cert_file it is only looked at",
        "",
        metavar="NAME",
    ),
)


def load(values: Mapping[str, Any]) -> UpkeepSettings:
    """From parsed flags. Raises ConfigError."""
    settings = UpkeepSettings(
        device_config_map=_object_name("device-config-map", values["device_config_map"]),
        tls_secret=_object_name("tls-secret", values["tls_secret"]),
        certificate_hosts=tuple(_host(text) for text in values["certificate_host"]),
        certificate_days=values["certificate_days"],
        certificate_settle_s=values["certificate_settle"],
        webhook_configuration=values["webhook_configuration"],
    )
    if settings.certificate_hosts and settings.tls_secret is None:
        raise ConfigError("--certificate-host needs --tls-secret: the Secret that the certificate is kept in")
    if settings.webhook_configuration and settings.tls_secret is None and not values["cert_file"]:
        raise ConfigError("--webhook-configuration needs a certificate: --tls-secret, or --cert_file and --key_file")
    both = (settings.device_config_map, settings.tls_secret)
    namespaces = {each.namespace for each in both if each is not None}
    if len(namespaces) > 1:
        names = " and ".join(sorted(namespaces))
        raise ConfigError(f"--device-config-map and --tls-secret must be in one namespace, found {names}")
    return settings


def _host(text: str) -> str:
    try:
        return hosts.checked(text)
    except CertificateError as error:
        raise ConfigError(f"--certificate-host: {error}") from error


def file_pair(values: Mapping[str, Any]) -> tuple[Path, Path] | None:
    """--cert_file and --key_file; None where neither is given. Raises ConfigError for one alone."""
    if bool(values["cert_file"]) != bool(values["key_file"]):
        raise ConfigError("--cert_file and --key_file go together: give both, or neither for plain http")
    if not values["cert_file"]:
        return None
    if values["tls_secret"]:
        raise ConfigError("--cert_file and --tls-secret exclude each other: one place for the certificate")
    return Path(values["cert_file"]), Path(values["key_file"])


def _object_name(flag: str, text: str) -> ObjectName | None:
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not namespace or not slash or not name or "/" in name:
        raise ConfigError(f"--{flag}: {text!r} is not allowed: expected NAMESPACE/NAME")
    return ObjectName(namespace, name)
