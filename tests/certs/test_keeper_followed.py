"""Certificates that somebody else makes, or that upstream's jobs made: read as they are, never served untrusted."""

from __future__ import annotations

import base64

import pytest

from hami.certs import kept
from hami.core.errors import CertificateError
from tests.certs.keeping import DAYS, HOSTS, Api, renewed_to, served, trusts


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
    assert served(keeper) == pair.cert
    assert api.bundle == pair.trusted
    assert api.version == 0


async def test_upstreams_jobs_find_their_key_after_each_renewal() -> None:
    api = Api()
    keeper = api.keeper()
    await renewed_to(api, keeper)
    assert api.data
    assert api.data["ca"] == api.data["ca.crt"]


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
    assert served(keeper) == (first if stays else second).cert
    if stays:
        assert trusts(api.bundle, first.cert)
    api.data = {key: text for key, text in kept.to_data(second).items() if text is not None}
    await keeper.turn()
    assert served(keeper) == second.cert
    assert api.bundle == second.trusted
