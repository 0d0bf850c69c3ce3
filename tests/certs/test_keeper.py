"""Renewal step by step, under a clock of the test: what is written when, and who is trusted at each moment."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import json
import ssl
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.certs import kept
from hami.certs.keeper import CertificateKeeper
from hami.certs.reload import ServingContext
from hami.core.errors import ApiError, CertificateError
from tests.certs.keeping import DAYS, HOSTS, SETTLE_S, START, Api, renewed_to, served, trusts


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


@pytest.mark.parametrize(("begins_in_days", "life_days"), [(2, 30), (-40, 30)])
async def test_a_pair_out_of_its_time_does_not_replace_one_in_its_time(begins_in_days: int, life_days: int) -> None:
    api = Api()
    keeper = api.keeper(hosts=())
    good = kept.make_first(HOSTS, api.now(), DAYS)
    odd = kept.make_first(HOSTS, api.now() + datetime.timedelta(days=begins_in_days), life_days)
    for pair in (good, odd):
        api.data = {key: text for key, text in kept.to_data(pair).items() if text is not None}
        await (keeper.start() if pair is good else keeper._safe_turn())
    assert served(keeper) == good.cert
    api.wait(days=3)
    await keeper._safe_turn()
    assert served(keeper) == (odd if begins_in_days > 0 else good).cert


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
    # Twice: the first is told of what the second writes.
    for keeper in keepers * 2:
        await keeper.turn()
    assert len({served(keeper) for keeper in keepers}) == 1
    assert kept.is_usable(api.state, HOSTS, api.now())
    if api.configuration is not None:
        assert api.bundle == api.state.trusted
        assert trusts(api.bundle, served(keepers[0]))


def _look(api: Api, keeper: CertificateKeeper) -> None:
    """A client with the newest bundle calls a replica, which may be late."""
    shown = served(keeper)
    if api.configuration is not None and api.bundle == api.state.trusted and _in_time(shown, api):
        assert trusts(api.bundle, shown)


def _outside(api: Api, kind: str, original: dict[str, Any] | None) -> None:
    if kind == "seconds":
        api.wait(seconds=40)
    elif kind == "edit" and api.configuration is not None:
        api.configuration["webhooks"][0]["clientConfig"]["caBundle"] = ""
    elif kind == "delete":
        api.configuration = None
    elif kind == "restore" and api.configuration is None:
        api.configuration = json.loads(json.dumps(original))


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


async def test_after_a_write_that_crossed_the_other_replicas_news_are_looked_at_at_once() -> None:
    """Both publish one change in one moment. Whoever loses is no party to a fight: while it rested it would serve what
    the other's next write takes out of the bundle."""
    api = Api()
    keeper = api.keeper()
    await keeper.turn()
    pair = kept.make_first(HOSTS, api.now(), DAYS, api.state.trusted)
    api.data = {key: text for key, text in kept.to_data(pair).items() if text}
    api.crossings = 1
    task = asyncio.ensure_future(keeper.run())
    try:
        for _ in range(200):
            keeper.on_webhook_configuration({"kind": "MutatingWebhookConfiguration"})
            await asyncio.sleep(0)
        assert api.crossings == 0
        assert trusts(api.bundle, pair.cert)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
