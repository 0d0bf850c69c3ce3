"""The certificate in a Secret: made once, shared, renewed in time, made anew for other hosts."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
from typing import Any

import pytest
from cryptography import x509

from hami.certs import make
from hami.certs.secret import ensure_pair
from hami.core.errors import CertificateError, ConflictError, NotFoundError

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOSTS = ["hami-scheduler.kube-system.svc", "127.0.0.1"]
DAYS = 90


class Store:
    """One namespace's Secrets behind the shape of an API call; `rivals` change the Secret before a write lands."""

    def __init__(self, data: dict[str, str] | None = None, *, exists: bool = True, rivals: int = 0) -> None:
        self.secret: dict[str, Any] | None = None
        if exists:
            self.secret = {"metadata": {"resourceVersion": "1"}, "data": data}
        self.rivals = rivals
        self.writes = 0

    async def request(
        self, method: str, path: str, body: bytes | None = None, content_type: str = "application/json"
    ) -> bytes:
        assert path.startswith("/api/v1/namespaces/kube-system/secrets")
        await asyncio.sleep(0)
        if method == "GET":
            if self.secret is None:
                raise NotFoundError(404, "NotFound", "no such secret")
            return json.dumps(self.secret).encode()
        sent = json.loads(body or b"")
        version = int(self.secret["metadata"]["resourceVersion"]) if self.secret else 0
        if self.rivals and self.secret:
            self.rivals -= 1
            self.secret["metadata"]["resourceVersion"] = str(version + 1)
            raise ConflictError(409, "Conflict", "the object has been modified")
        if method == "POST":
            if self.secret is not None:
                raise ConflictError(409, "AlreadyExists", "already exists")
            self.secret = {"metadata": {"resourceVersion": "1"}, "data": sent["data"]}
        else:
            if sent["metadata"]["resourceVersion"] != str(version):
                raise ConflictError(409, "Conflict", "the object has been modified")
            assert self.secret is not None
            merged = {**(self.secret["data"] or {}), **sent["data"]}
            data = {key: value for key, value in merged.items() if value is not None}
            self.secret = {"metadata": {"resourceVersion": str(version + 1)}, "data": data}
        self.writes += 1
        return b"{}"

    async def ensure(self, now: datetime.datetime = NOW, hosts: list[str] = HOSTS) -> make.CertificatePair:
        return await ensure_pair(self.request, "kube-system", "hami-scheduler-tls", hosts, now, DAYS)

    def kept(self) -> bytes:
        assert self.secret
        return base64.b64decode(self.secret["data"]["tls.crt"])


@pytest.mark.parametrize("store", [Store(), Store({}), Store(exists=False), Store({"tls.crt": "bm8="})])
async def test_a_pair_is_made_where_there_is_none(store: Store) -> None:
    pair = await store.ensure()
    assert store.kept() == pair.cert_pem
    assert store.secret
    assert set(store.secret["data"]) == {"ca", "ca.crt", "tls.crt", "tls.key"}, "the authority's key is not kept"


async def test_replicas_that_start_together_serve_one_certificate() -> None:
    store = Store()
    pairs = await asyncio.gather(*(store.ensure() for _ in range(4)))
    assert {pair.cert_pem for pair in pairs} == {store.kept()}
    assert store.writes == 1


@pytest.mark.parametrize(("days", "renewed"), [(0, False), (59, False), (61, True), (DAYS + 1, True)])
async def test_renewed_after_two_thirds_of_its_life(days: int, renewed: bool) -> None:
    store = Store()
    first = await store.ensure()
    second = await store.ensure(NOW + datetime.timedelta(days=days))
    assert (second.cert_pem != first.cert_pem) is renewed
    ends = x509.load_pem_x509_certificate(second.cert_pem).not_valid_after_utc
    assert ends > NOW + datetime.timedelta(days=days)


async def test_made_anew_for_another_host_only() -> None:
    store = Store()
    first = await store.ensure()
    assert (await store.ensure(hosts=HOSTS[:1])).cert_pem == first.cert_pem
    assert (await store.ensure(hosts=[*HOSTS, "gpu.example"])).cert_pem != first.cert_pem


async def test_a_secret_that_always_changes_is_an_error() -> None:
    with pytest.raises(CertificateError, match="changed at every try"):
        await Store(rivals=100).ensure()


@pytest.mark.parametrize("foreign", ["ca.crt", "tls.crt", "tls.key"])
async def test_parts_that_do_not_belong_together_are_made_anew(foreign: str) -> None:
    store, other = Store(), Store()
    await store.ensure()
    await other.ensure()
    assert store.secret
    assert other.secret
    store.secret["data"][foreign] = other.secret["data"][foreign]
    mixed = dict(store.secret["data"])
    pair = await store.ensure()
    assert store.secret["data"] != mixed
    assert store.kept() == pair.cert_pem
