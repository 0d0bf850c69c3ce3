"""`hami certs create|patch`: makes certificates, and tells kube-apiserver about them."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from hami.certs import make, publish, secret
from hami.config import flags, shared_flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError
from hami.kube.client import ApiClient

CREATE_FLAGS: Final = (
    Flag("host", "name or address that the certificate is for, repeatable", (), repeatable=True, metavar="HOST"),
    Flag("out", "folder for ca.crt, ca.key, tls.crt and tls.key", "", metavar="DIR"),
    Flag("days", "days until the certificate ends", 3650, flags.whole(1, 36_500), metavar="N"),
    Flag("secret", "keep the pair in this Secret: take it from there, or write it there", "", metavar="NAME"),
    Flag("namespace", "namespace of the Secret", "", metavar="NAMESPACE"),
    shared_flags.KUBECONFIG,
)
PATCH_FLAGS: Final = (
    shared_flags.KUBECONFIG,
    Flag("webhook-configuration", "name of the MutatingWebhookConfiguration", "hami-webhook", metavar="NAME"),
    Flag("ca-file", "authority that signed the serving certificate (PEM)", "", metavar="FILE"),
    Flag("url", "reach the webhook at this https URL instead of its Service", "", metavar="URL"),
    Flag("failure-policy", "set the failure policy as well", "", flags.Choice("Ignore", "Fail"), metavar="POLICY"),
)
USAGE: Final = """usage: hami certs create --host HOST [--host HOST ...] --out DIR [--days N]
                         [--secret NAME --namespace NAMESPACE]
       hami certs patch --ca-file FILE [--url URL] [--webhook-configuration NAME] [--kubeconfig FILE]

create makes an authority and a serving certificate; patch writes the authority (and a URL) into the
webhook configuration. `hami certs create --help` and `hami certs patch --help` list the flags."""


def main(argv: Sequence[str]) -> int:
    """Runs one subcommand. Raises ConfigError, CertificateError, ApiError, TransportError."""
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if argv else 2
    if argv[0] == "create":
        return _create(argv[1:])
    if argv[0] == "patch":
        return asyncio.run(_patch(argv[1:]))
    raise ConfigError(f"unknown command {argv[0]!r}: expected create or patch")


def _create(argv: Sequence[str]) -> int:
    values, _ = flags.parse(
        "hami certs create", "Makes an authority and a serving certificate.", CREATE_FLAGS, argv, flags.environment()
    )
    if not values["host"]:
        raise ConfigError("--host is required: a name or address that the webhook is reached at")
    if not values["out"]:
        raise ConfigError("--out is required: the folder for ca.crt, tls.crt and tls.key")
    if bool(values["secret"]) != bool(values["namespace"]):
        raise ConfigError("--secret and --namespace go together: the Secret that keeps the certificate")
    now = datetime.datetime.now(datetime.UTC)
    folder = Path(values["out"])
    if values["secret"]:
        pair = asyncio.run(_kept_pair(values, now))
    else:
        pair = make.make_pair(values["host"], now, values["days"])
    make.write_pair(pair, folder)
    print(f"certificate for {', '.join(values['host'])} in {folder}")
    return 0


async def _kept_pair(values: dict[str, Any], now: datetime.datetime) -> make.CertificatePair:
    client = await ApiClient.load(values["kubeconfig"] or None)
    try:
        return await secret.ensure_pair(
            client.request, values["namespace"], values["secret"], values["host"], now, values["days"]
        )
    finally:
        await client.close()


async def _patch(argv: Sequence[str]) -> int:
    values, _ = flags.parse(
        "hami certs patch",
        "Writes the authority into the webhook configuration.",
        PATCH_FLAGS,
        argv,
        flags.environment(),
    )
    if not values["ca_file"]:
        raise ConfigError("--ca-file is required: the ca.crt that `hami certs create` wrote")
    ca_pem = publish.read_authority(Path(values["ca_file"]))
    client = await ApiClient.load(values["kubeconfig"] or None)
    try:
        changed = await publish.patch_webhook(
            client.request,
            values["webhook_configuration"],
            ca_pem,
            url=values["url"],
            failure_policy=values["failure_policy"],
        )
    finally:
        await client.close()
    print(f"{values['webhook_configuration']}: {'patched' if changed else 'already right'}")
    return 0
