"""Certificates: made for every host, written whole, reloaded in place, published to the webhook configuration."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hami.certs import make, publish
from hami.certs.reload import ReloadingContext
from hami.core.errors import CertificateError
from tests.tools.waiting import until

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def write(folder: Path, *hosts: str, days: int = 36_000) -> make.CertificatePair:
    pair = make.make_pair(hosts, NOW, days)
    make.write_pair(pair, folder)
    return pair


async def served_certificate(context: ssl.SSLContext, ca_file: Path, host: str) -> bytes:
    """The leaf a client gets over a real connection, verified against the authority and the host."""

    async def close(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(close, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    client = ssl.create_default_context(cafile=ca_file)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client, server_hostname=host)
        leaf = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await reader.read()
        writer.close()
    finally:
        server.close()
        await server.wait_closed()
    assert isinstance(leaf, bytes)
    return leaf


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "hami-scheduler.kube-system.svc"])
async def test_certificate_serves_each_host(tmp_path: Path, host: str) -> None:
    write(tmp_path, "127.0.0.1", "localhost", "hami-scheduler.kube-system.svc")
    tls = ReloadingContext(tmp_path / make.CERT_FILE, tmp_path / make.KEY_FILE)
    assert await served_certificate(tls.context, tmp_path / make.CA_FILE, host)


async def test_certificate_for_another_host_is_refused_by_the_client(tmp_path: Path) -> None:
    write(tmp_path, "other.example")
    tls = ReloadingContext(tmp_path / make.CERT_FILE, tmp_path / make.KEY_FILE)
    with pytest.raises(ssl.SSLCertVerificationError):
        await served_certificate(tls.context, tmp_path / make.CA_FILE, "localhost")


def test_keys_are_private_and_no_part_stays(tmp_path: Path) -> None:
    write(tmp_path, "localhost")
    assert stat.S_IMODE((tmp_path / make.KEY_FILE).stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.crt", "ca.key", "tls.crt", "tls.key"]


async def test_new_connections_use_the_renewed_certificate(tmp_path: Path) -> None:
    write(tmp_path, "localhost")
    tls = ReloadingContext(tmp_path / make.CERT_FILE, tmp_path / make.KEY_FILE)
    before = await served_certificate(tls.context, tmp_path / make.CA_FILE, "localhost")
    write(tmp_path, "localhost")
    tls.reload()
    assert await served_certificate(tls.context, tmp_path / make.CA_FILE, "localhost") != before


async def test_a_pair_that_does_not_load_keeps_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, "localhost")
    ca = (tmp_path / make.CA_FILE).read_bytes()
    tls = ReloadingContext(tmp_path / make.CERT_FILE, tmp_path / make.KEY_FILE)
    (tmp_path / make.CERT_FILE).write_text("garbage")
    with pytest.raises(CertificateError, match=r"tls\.crt"):
        tls.reload()
    (tmp_path / make.CA_FILE).write_bytes(ca)
    assert await served_certificate(tls.context, tmp_path / make.CA_FILE, "localhost")


async def test_a_pair_that_begins_later_is_served_when_it_begins(tmp_path: Path) -> None:
    """No file changes at that moment."""
    clock = [NOW]
    write(tmp_path, "localhost")
    context = ReloadingContext(tmp_path / make.CERT_FILE, tmp_path / make.KEY_FILE, now=lambda: clock[0], retry_s=0.01)
    first = context.chain
    later = make.make_pair(["localhost"], NOW + datetime.timedelta(days=1), 30)
    never: asyncio.Event = asyncio.Event()

    async def changes() -> AsyncIterator[object]:
        make.write_pair(later, tmp_path)
        yield "written"
        await never.wait()

    following = asyncio.ensure_future(context.follow(changes()))
    await until(lambda: context._refused, "the refusal")
    assert context.chain == first
    clock[0] += datetime.timedelta(days=1)
    await until(lambda: context.chain == later.cert_pem, "the later pair")
    never.set()
    await following


def test_no_host_is_refused() -> None:
    with pytest.raises(CertificateError, match="--host"):
        make.make_pair([], NOW, 1)


class Api:
    """A webhook configuration behind the two calls that `patch_webhook` makes."""

    def __init__(self) -> None:
        self.webhooks: list[dict[str, Any]] = [
            {
                "name": "vgpu.hami.io",
                "clientConfig": {"service": {"name": "s", "namespace": "n"}},
                "failurePolicy": "Ignore",
            }
        ]
        self.writes = 0

    async def __call__(self, method: str, path: str, body: bytes | None = None, content_type: str = "") -> bytes:
        assert path.endswith("/mutatingwebhookconfigurations/hami")
        if method == "PATCH":
            import jsonpatch

            self.writes += 1
            document = {"webhooks": self.webhooks}
            self.webhooks = jsonpatch.apply_patch(document, msgspec.json.decode(body or b"[]"))["webhooks"]
        return msgspec.json.encode({"webhooks": self.webhooks})


async def test_publish_writes_the_authority_once(tmp_path: Path) -> None:
    pair = write(tmp_path, "localhost")
    api = Api()
    ca_pem = publish.read_authority(tmp_path / make.CA_FILE)
    assert await publish.patch_webhook(api, "hami", ca_pem)
    assert not await publish.patch_webhook(api, "hami", ca_pem)
    assert api.writes == 1
    config = api.webhooks[0]["clientConfig"]
    assert isinstance(config, dict)
    assert base64.b64decode(config["caBundle"]) == pair.ca_pem
    assert config["service"] == {"name": "s", "namespace": "n"}


def entry(name: str, **config: object) -> dict[str, Any]:
    return {"name": name, "clientConfig": config, "failurePolicy": "Ignore"}


OURS, THEIRS = {"name": "s", "namespace": "n"}, {"name": "other", "namespace": "n"}
SHARED: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "ours alone": ([entry("vgpu.hami.io", service=OURS)], [0]),
    "a stranger beside it": ([entry("x.corp.com", service=THEIRS), entry("vgpu.hami.io", service=OURS)], [1]),
    "two that lead to us": ([entry("vgpu.hami.io", service=OURS), entry("ns.corp.com", service=OURS)], [0, 1]),
    "by URL": ([entry("vgpu.hami.io", url="https://a/webhook"), entry("x.corp.com", url="https://b/webhook")], [0]),
    "another name": ([entry("gpu.corp.com", service=OURS)], [0]),
    "none": ([], []),
}
"""Webhooks of one configuration, and the places of those whose bundle is written."""


@pytest.mark.parametrize("name", SHARED)
async def test_webhooks_of_somebody_else_in_the_configuration_stay_as_they_are(tmp_path: Path, name: str) -> None:
    write(tmp_path, "localhost")
    api = Api()
    api.webhooks, places = SHARED[name]
    before = json.loads(json.dumps(api.webhooks))
    assert await publish.patch_webhook(api, "hami", publish.read_authority(tmp_path / make.CA_FILE)) is bool(places)
    changed = [place for place, webhook in enumerate(api.webhooks) if webhook != before[place]]
    assert changed == places
    assert all(api.webhooks[place]["clientConfig"]["caBundle"] for place in places)


async def test_publish_by_url_replaces_the_service(tmp_path: Path) -> None:
    write(tmp_path, "localhost")
    api = Api()
    ca_pem = publish.read_authority(tmp_path / make.CA_FILE)
    await publish.patch_webhook(api, "hami", ca_pem, url="https://127.0.0.1:9443/webhook", failure_policy="Fail")
    config = api.webhooks[0]["clientConfig"]
    assert isinstance(config, dict)
    assert set(config) == {"url", "caBundle"}
    assert api.webhooks[0]["failurePolicy"] == "Fail"


def test_garbage_is_no_authority(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("garbage")
    with pytest.raises(CertificateError, match="no readable PEM"):
        publish.read_authority(tmp_path / "ca.crt")
