"""Certificates for hosts however they are spelled: kept when they are right, and found to be for the webhook's host."""

from __future__ import annotations

import base64
import datetime
from typing import Any

import pytest
from cryptography import x509

from hami.apps import certs
from hami.certs import kept, trust
from hami.certs.hosts import checked
from hami.certs.make import make_pair
from hami.certs.reading import names_of
from hami.config.scheduler import load
from hami.core.errors import CertificateError, ConfigError, HamiError

NOW = datetime.datetime(2026, 11, 30, tzinfo=datetime.UTC)
SPELLINGS = [
    ("hami-scheduler.kube-system.svc", "hami-scheduler.kube-system.svc"),
    ("GPU.Example", "gpu.example"),
    ("gpu.example.", "gpu.example"),
    ("*.gpu.example", "*.gpu.example"),
    ("10.0.0.7", "10.0.0.7"),
    ("fd00:0:0:0::7", "fd00::7"),
    ("FD00::7", "fd00::7"),
    ("[fd00::7]", "fd00::7"),
    ("::ffff:10.0.0.7", "::ffff:a00:7"),
]
NO_HOSTS = ["", " ", "é", "gpu.exämple", "gpu example", "host:443", "https://host", "a/b", "-a", "a..b", "*",
            "a.*.b", "a" * 64, "1.2.3.4/24", "[fd00::7]:443", "x" + ".abcdefgh" * 30]  # fmt: skip


@pytest.mark.parametrize(("host", "spelling"), SPELLINGS)
def test_a_fresh_certificate_is_good_for_its_hosts_and_not_made_again(host: str, spelling: str) -> None:
    """Else it would be renewed for ever: the certificate says fd00::7 where the flag said fd00:0::7."""
    state = kept.make_first((host, "127.0.0.1"), NOW, 30)
    assert spelling in names_of(x509.load_pem_x509_certificate(state.cert))
    assert kept.is_usable(state, (host,), NOW)
    assert not kept.is_due(state, (host, "127.0.0.1"), NOW)
    assert kept.is_due(state, (host, "another.example"), NOW)


@pytest.mark.parametrize(("host", "_spelling"), SPELLINGS)
def test_b01_the_webhooks_url_is_compared_however_it_is_spelled(host: str, _spelling: str) -> None:
    """A difference in case only kept the scheduler unready: it took its own certificate for another host's."""
    state = kept.make_first((host,), NOW, 30)
    shown = host.replace("*", "www")
    shown = f"[{shown}]" if ":" in shown and not shown.startswith("[") else shown
    for text in (shown, shown.upper()):
        client: dict[str, Any] = {"url": f"https://{text}:31998/webhook"}
        client["caBundle"] = base64.b64encode(state.trusted).decode()
        configuration = {"webhooks": [{"name": "vgpu.hami.io", "clientConfig": client}]}
        assert list(trust._problems(configuration, state.cert, NOW)) == []
    client["url"] = "https://other.example/webhook"
    (problem,) = trust._problems(configuration, state.cert, NOW)
    assert "not for other.example" in problem


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_is_no_host_is_refused_by_name(host: str) -> None:
    for refuse in (lambda: checked(host), lambda: make_pair([host], NOW, 30)):
        with pytest.raises(CertificateError, match="is no host: expected a DNS name"):
            refuse()


@pytest.mark.parametrize("host", ["é", "host:443", "https://host"])
def test_commands_name_the_host_that_is_none(host: str, tmp_path: Any) -> None:
    with pytest.raises(HamiError, match="is no host"):
        certs.main(["create", f"--host={host}", f"--out={tmp_path}"])
    with pytest.raises(ConfigError, match=r"--certificate-host: .* is no host"):
        load(["--device-config-file=x", "--tls-secret=a/b", f"--certificate-host={host}"], {})
    assert list(tmp_path.iterdir()) == []
