"""A Secret and a webhook configuration under a clock of the test, and keepers that look at them."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import Mapping
from typing import Any

import jsonpatch

from hami.certs import kept
from hami.certs.keeper import CertificateKeeper, KeeperSettings
from hami.certs.kept import Kept
from hami.certs.reload import ServingContext
from hami.core.errors import ConflictError, InvalidError, NotFoundError

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
HOSTS = ("hami.kube-system.svc", "127.0.0.1")
DAYS = 90
SETTLE_S = 60.0


class Api:
    """One Secret and one webhook configuration, as the API server keeps them, and the time."""

    def __init__(self) -> None:
        self.data: dict[str, str] | None = None
        self.version = 0
        self.configuration: dict[str, Any] | None = {
            "webhooks": [{"name": "vgpu.hami.io", "clientConfig": {"service": {"name": "s", "namespace": "n"}}}]
        }
        self.now_s = 0.0
        self.patches = 0
        self.crossings = 0
        """So many of the next patches of the configuration cross somebody else's."""
        self.told: list[str] = []

    def now(self) -> datetime.datetime:
        return START + datetime.timedelta(seconds=self.now_s)

    def wait(self, **span: float) -> None:
        self.now_s += datetime.timedelta(**span).total_seconds()

    @property
    def state(self) -> Kept:
        return kept.from_data(self.data)

    @property
    def bundle(self) -> bytes:
        assert self.configuration
        return base64.b64decode(self.configuration["webhooks"][0]["clientConfig"].get("caBundle", ""))

    async def request(self, method: str, path: str, body: bytes | None = None, content_type: str = "") -> bytes:
        sent = json.loads(body or b"null")
        if "/secrets" in path:
            return self._secret(method, sent)
        if self.configuration is None:
            raise NotFoundError(404, "NotFound", "no such configuration")
        if method == "PATCH":
            self.patches += 1
            if self.crossings:
                self.crossings -= 1
                raise InvalidError(422, "Invalid", "crossed")
            try:
                self.configuration = jsonpatch.apply_patch(self.configuration, sent)
            except jsonpatch.JsonPatchTestFailed as error:
                raise InvalidError(422, "Invalid", str(error)) from error
        return json.dumps(self.configuration).encode()

    def _secret(self, method: str, sent: Any) -> bytes:
        if method == "GET":
            if self.data is None:
                raise NotFoundError(404, "NotFound", "no such secret")
            return json.dumps({"metadata": {"resourceVersion": str(self.version)}, "data": self.data}).encode()
        if method == "POST" and self.data is not None:
            raise ConflictError(409, "AlreadyExists", "already exists")
        if method == "PATCH" and sent["metadata"]["resourceVersion"] != str(self.version):
            raise ConflictError(409, "Conflict", "the object has been modified")
        merged = {**(self.data or {}), **sent["data"]}
        self.data = {key: text for key, text in merged.items() if text is not None}
        self.version += 1
        return b"{}"

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
        self.told.append(reason)

    def keeper(self, hosts: tuple[str, ...] = HOSTS, webhook: str = "hami-webhook") -> CertificateKeeper:
        settings_ = KeeperSettings(
            namespace="kube-system", secret="tls", hosts=hosts, days=DAYS, webhook=webhook, settle_s=SETTLE_S
        )
        return CertificateKeeper(
            self.request, settings_, ServingContext(self.now), self, now=self.now, monotonic_s=lambda: self.now_s
        )


def trusts(bundle: bytes, cert: bytes) -> bool:
    """Whether a client with this bundle accepts the certificate."""
    return kept.authority_end(Kept(trusted=bundle, cert=cert)) is not None


async def renewed_to(api: Api, keeper: CertificateKeeper, after_days: float = 61) -> Kept:
    """A keeper with a certificate whose renewal waits."""
    await keeper.turn()
    api.wait(days=after_days)
    await keeper.turn()
    assert api.state.next_cert
    return api.state


def served(keeper: CertificateKeeper) -> bytes:
    """The certificate that the replica's next connection shows."""
    return keeper._serving._served.partition(b"-----BEGIN PRIVATE KEY")[0]
