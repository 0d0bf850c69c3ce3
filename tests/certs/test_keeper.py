"""Renewal step by step, under a clock of the test: what is written when, and who is trusted at each moment."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import datetime
import json
import ssl
from collections.abc import Mapping
from typing import Any

import jsonpatch
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.certs import kept
from hami.certs.keeper import CertificateKeeper, KeeperSettings
from hami.certs.kept import Kept
from hami.certs.reload import ServingContext
from hami.core.errors import ApiError, CertificateError, ConflictError, InvalidError, NotFoundError

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


async def test_a_renewal_waits_until_it_was_trusted_for_long_enough() -> None:
    api = Api()
    keeper = api.keeper()
    await keeper.start()
    assert "hami-webhook does not trust" in keeper.missing(), "not ready before clients can trust it"
    await keeper.turn()
    first = api.state
    assert api.bundle == first.trusted
    assert keeper.missing() == ""
    api.wait(days=59)
    await keeper.turn()
    assert api.state == first, "not due"
    staged = await renewed_to(api, keeper, after_days=2)
    assert staged.cert == first.cert, "the old one is served still"
    assert api.bundle == staged.trusted
    assert trusts(api.bundle, first.cert)
    assert trusts(api.bundle, staged.next_cert)
    api.wait(seconds=SETTLE_S - 1)
    await keeper.turn()
    assert api.state == staged, "not settled"
    api.wait(seconds=1)
    await keeper.turn()
    assert api.state.cert == staged.next_cert
    assert not api.state.next_cert
    assert trusts(api.bundle, first.cert), "a replica may serve it for a moment"
    assert api.bundle == api.state.trusted
    api.wait(days=DAYS * kept.RENEW_AT + 1)
    await keeper.turn()
    assert not trusts(api.bundle, first.cert), "its authority is dropped at the next renewal"


async def test_a_bundle_that_was_edited_meanwhile_begins_the_wait_anew() -> None:
    api = Api()
    keeper = api.keeper()
    staged = await renewed_to(api, keeper)
    api.wait(seconds=SETTLE_S - 1)
    assert api.configuration
    api.configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""
    keeper.on_webhook_configuration({"kind": "MutatingWebhookConfiguration"})
    await keeper.turn()
    assert api.bundle == staged.trusted
    assert api.told == ["WebhookRepaired"]
    api.wait(seconds=2)
    await keeper.turn()
    assert api.state == staged
    api.wait(seconds=SETTLE_S)
    await keeper.turn()
    assert api.state.cert == staged.next_cert


@pytest.mark.parametrize("gone", ["deleted", "not named"])
async def test_a_renewal_goes_on_where_no_configuration_is(gone: str) -> None:
    api = Api()
    keeper = api.keeper(webhook="" if gone == "not named" else "hami-webhook")
    if gone == "deleted":
        api.configuration = None
    staged = await renewed_to(api, keeper)
    api.wait(seconds=SETTLE_S)
    await keeper.turn()
    assert api.state.cert == staged.next_cert
    assert gone == "not named" or api.configuration is None, "not made anew"


async def test_another_host_is_added_without_a_break() -> None:
    api = Api()
    await api.keeper(HOSTS[:1]).turn()
    first = api.state
    keeper = api.keeper(HOSTS)
    await keeper.turn()
    assert api.state.cert == first.cert, "good for the first host still"
    api.wait(seconds=SETTLE_S)
    await keeper.turn()
    assert kept.is_usable(api.state, HOSTS[1:], api.now())


@pytest.mark.parametrize("what", ["over", "another first host", "broken", "no authority"])
async def test_what_no_client_could_use_is_replaced_at_once(what: str) -> None:
    api = Api()
    await api.keeper(("elsewhere",) if what == "another first host" else HOSTS).turn()
    first = api.state
    assert api.data
    if what == "over":
        api.wait(days=DAYS + 1)
    elif what == "broken":
        api.data["tls.key"] = "AAAA"
    elif what == "no authority":
        del api.data["ca.crt"], api.data["ca"]
    keeper = api.keeper()
    await keeper.start()
    assert kept.is_usable(api.state, HOSTS, api.now())
    assert api.state.cert != first.cert
    assert not api.state.next_cert
    await keeper.turn()
    assert trusts(api.bundle, api.state.cert)
    assert trusts(api.bundle, first.cert) is (what in ("another first host", "broken")), "others may serve it yet"


async def test_a_followed_secret_needs_a_certificate() -> None:
    api = Api()
    with pytest.raises(CertificateError, match="Secret kube-system/tls does not exist"):
        await api.keeper(hosts=()).start()
    api.data = {}
    with pytest.raises(CertificateError, match=r"holds no certificate: tls\.crt and tls\.key"):
        await api.keeper(hosts=()).start()
    assert api.version == 0


async def test_a_secret_of_upstreams_jobs_is_taken_as_it_is() -> None:
    """Its authority is under `ca`. Pods of upstream's that serve the pair stay trusted, and nothing is written."""
    api = Api()
    pair = kept.make_first(HOSTS, api.now(), 36_500)
    data = kept.to_data(pair)
    api.data = {"ca": str(data["ca.crt"]), "tls.crt": str(data["tls.crt"]), "tls.key": str(data["tls.key"])}
    keeper = api.keeper()
    await keeper.start()
    await keeper.turn()
    assert _served(keeper) == pair.cert
    assert api.bundle == pair.trusted
    assert api.version == 0


async def test_upstreams_jobs_find_their_key_after_each_renewal() -> None:
    api = Api()
    keeper = api.keeper()
    await renewed_to(api, keeper)
    assert api.data
    assert api.data["ca"] == api.data["ca.crt"]


async def test_readiness_says_why_the_bundle_could_not_be_written() -> None:
    api = Api()
    keeper = api.keeper()
    await keeper.start()
    whole = api.request

    async def refused(method: str, path: str, body: bytes | None = None, content_type: str = "") -> bytes:
        if "/secrets" not in path:
            raise ApiError(403, "Forbidden", "mutatingwebhookconfigurations is forbidden")
        return await whole(method, path, body, content_type)

    keeper._request = refused
    await keeper._safe_turn()
    assert "mutatingwebhookconfigurations is forbidden" in keeper.missing()
    keeper._request = whole
    await keeper._safe_turn()
    assert keeper.missing() == ""


HALF: dict[str, tuple[list[str], bool]] = {
    "authority first": (["ca.crt"], True),
    "certificate first": (["tls.crt"], True),
    "key first": (["tls.key"], True),
    "pair first": (["tls.crt", "tls.key"], False),
    "certificate without key": (["tls.crt", "-tls.key"], True),
    "authority is gone": (["-ca.crt", "-ca"], True),
    "authority of garbage": (["garbage ca.crt"], True),
}
"""What is written of another pair (- for deleted), and whether the first pair is served still."""


@pytest.mark.parametrize("name", HALF)
async def test_a_followed_secret_that_is_half_rotated_leaves_clients_trusting_what_is_served(name: str) -> None:
    """Somebody rotates by hand, key by key: the bundle never loses the authority of what is served."""
    api = Api()
    keeper = api.keeper(hosts=())
    first, second = (kept.make_first(HOSTS, api.now(), DAYS) for _ in range(2))
    api.data = {key: text for key, text in kept.to_data(first).items() if text is not None}
    await keeper.start()
    await keeper.turn()
    assert api.bundle == first.trusted
    writes, stays = HALF[name]
    for write in writes:
        if write.startswith("-"):
            del api.data[write[1:]]
        elif write.startswith("garbage"):
            api.data["ca.crt"] = base64.b64encode(b"garbage").decode()
        else:
            api.data[write] = str(kept.to_data(second)[write])
    for _ in range(2):
        await keeper._safe_turn()
    assert _served(keeper) == (first if stays else second).cert
    if stays:
        assert trusts(api.bundle, first.cert)
    api.data = {key: text for key, text in kept.to_data(second).items() if text is not None}
    await keeper.turn()
    assert _served(keeper) == second.cert
    assert api.bundle == second.trusted


@pytest.mark.parametrize(("begins_in_days", "life_days"), [(2, 30), (-40, 30)])
async def test_a_pair_out_of_its_time_does_not_replace_one_in_its_time(begins_in_days: int, life_days: int) -> None:
    api = Api()
    keeper = api.keeper(hosts=())
    good = kept.make_first(HOSTS, api.now(), DAYS)
    odd = kept.make_first(HOSTS, api.now() + datetime.timedelta(days=begins_in_days), life_days)
    for pair in (good, odd):
        api.data = {key: text for key, text in kept.to_data(pair).items() if text is not None}
        await (keeper.start() if pair is good else keeper._safe_turn())
    assert _served(keeper) == good.cert
    api.wait(days=3)
    await keeper._safe_turn()
    assert _served(keeper) == (odd if begins_in_days > 0 else good).cert


async def test_a_replica_whose_clock_is_behind_keeps_what_another_made() -> None:
    api = Api()
    await api.keeper().turn()
    first = api.state
    api.wait(minutes=-10)
    await api.keeper().turn()
    assert api.state == first


async def test_a_tool_that_undoes_each_repair_at_once_is_not_answered_at_its_speed() -> None:
    """A GitOps tool or cert-manager's injector with another authority: both would write as fast as the server can."""
    api = Api()
    keeper = api.keeper()
    await keeper.turn()
    pauses = []
    for _ in range(12):
        assert api.configuration
        api.configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""
        await keeper._safe_turn()
        pauses.append(keeper._fight_pause_s())
        api.wait(seconds=pauses[-1])
    assert pauses == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60, 60]
    api.wait(minutes=5)
    assert api.configuration
    api.configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""
    await keeper._safe_turn()
    assert keeper._fight_pause_s() == 0.5, "peace in between"


async def test_the_pause_between_repairs_holds_however_often_it_is_told() -> None:
    """The loop itself: while it rests after a repair, news do not wake it."""
    api = Api()
    keeper = api.keeper()
    await keeper.turn()
    task = asyncio.ensure_future(keeper.run())
    began = api.patches
    for _ in range(200):
        assert api.configuration
        api.configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""
        keeper.on_webhook_configuration({"kind": "MutatingWebhookConfiguration"})
        await asyncio.sleep(0)
    assert api.patches - began == 1
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


MOVES = ["turn 0", "turn 1", "look 0", "look 1", "seconds", "days", "edit", "delete", "restore"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from(MOVES), min_size=10, max_size=60))
async def test_whatever_happens_clients_trust_what_is_served(moves: list[str]) -> None:
    """Two replicas, turns in any order, edits of the bundle, a configuration that goes and comes."""
    api = Api()
    keepers = [api.keeper(), api.keeper()]
    for keeper in keepers:
        await keeper.start()
        await keeper.turn()
    original = api.configuration
    for move in moves:
        kind, _, number = move.partition(" ")
        if kind == "turn":
            await keepers[int(number)].turn()
        elif kind == "look":
            _look(api, keepers[int(number)])
        elif kind == "days":
            api.wait(days=20)
            # Told of changes, replicas look within a moment: no replica sleeps for days.
            for keeper in keepers:
                await keeper.turn()
        else:
            _outside(api, kind, original)
    for keeper in keepers:
        await keeper.turn()
    assert len({_served(keeper) for keeper in keepers}) == 1
    assert kept.is_usable(api.state, HOSTS, api.now())
    if api.configuration is not None:
        assert api.bundle == api.state.trusted
        assert trusts(api.bundle, _served(keepers[0]))


def _look(api: Api, keeper: CertificateKeeper) -> None:
    """A client with the newest bundle calls a replica, which may be late."""
    served = _served(keeper)
    if api.configuration is not None and api.bundle == api.state.trusted and _in_time(served, api):
        assert trusts(api.bundle, served)


def _outside(api: Api, kind: str, original: dict[str, Any] | None) -> None:
    if kind == "seconds":
        api.wait(seconds=40)
    elif kind == "edit" and api.configuration is not None:
        api.configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""
    elif kind == "delete":
        api.configuration = None
    elif kind == "restore" and api.configuration is None:
        api.configuration = json.loads(json.dumps(original))


def _served(keeper: CertificateKeeper) -> bytes:
    """The certificate that the replica's next connection shows."""
    return keeper._serving._served.partition(b"-----BEGIN PRIVATE KEY")[0]


def _in_time(cert: bytes, api: Api) -> bool:
    from cryptography import x509

    return x509.load_pem_x509_certificate(cert).not_valid_after_utc > api.now()


def test_a_context_that_serves_garbage_keeps_what_it_had() -> None:
    serving = ServingContext()
    pair = kept.make_first(HOSTS, START, DAYS)
    assert serving.load(pair.cert, pair.key, "a pair")
    assert not serving.load(pair.cert, pair.key, "the same pair")
    other = kept.make_first(HOSTS, START, DAYS)
    with pytest.raises(CertificateError, match="cannot load a mixed pair"):
        serving.load(other.cert, pair.key, "a mixed pair")
    assert isinstance(serving.context, ssl.SSLContext)
    assert not serving.load(pair.cert, pair.key, "what is served still")
