"""Locks that vendors' plugins keep beside the hand-off token (spec/scheduler 2.7 and 9).

Most vendors go by the token. Cambricon's plugin goes by a lock of its own, an RFC 3339 time without an owner. A pod
with cards of both needs both: they stand on one Node object, so one PATCH takes all or none, and no two binds can each
hold a part. The lock carries the token's time, by which the token's owner knows it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hami.core.device_type import SHARED_TOKEN, NodeLock, Registry
from hami.core.errors import DecodeError
from hami.core.token import parse_token


def stamp_of(token_text: str) -> str:
    """The time of a token: what is written to the vendors' own locks."""
    return token_text.partition(",")[0]


def own_locks(registry: Registry, words: Iterable[str] | None = None) -> tuple[NodeLock, ...]:
    """Locks apart from the shared token that the vendors of `words` go by, all vendors' without it, by key."""
    wanted = None if words is None else set(words)
    found = {
        vendor.node_lock.key: vendor.node_lock
        for vendor in registry
        if vendor.node_lock is not None and (wanted is None or vendor.word in wanted)
    }
    found.pop(SHARED_TOKEN.key, None)
    return tuple(found[key] for key in sorted(found))


def token_is_awaited(registry: Registry, words: Iterable[str]) -> bool:
    """Whether the plugin of one of these vendors takes the shared token off."""
    wanted = set(words)
    return any(vendor.word in wanted and vendor.node_lock == SHARED_TOKEN for vendor in registry)


def texts_on(registry: Registry, annotations: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Key and text of each vendor's own lock that a node has."""
    return tuple((lock.key, annotations[lock.key]) for lock in own_locks(registry) if annotations.get(lock.key))


def held(locks: Iterable[NodeLock], texts: Iterable[tuple[str, str]], now_unix_s: float) -> tuple[tuple[str, str], ...]:
    """Key and text of those of `locks` that somebody holds now: they name no owner, so only time ends them.

    A text that cannot be read counts as expired, as with tokens.
    """
    expiries = {lock.key: lock.expiry_s for lock in locks}
    return tuple((key, text) for key, text in texts if key in expiries and _lasts(text, now_unix_s, expiries[key]))


def _lasts(text: str, now_unix_s: float, expiry_s: float) -> bool:
    try:
        age_s = now_unix_s - parse_token(text).time_unix_s
    except DecodeError:
        return False
    return -expiry_s <= age_s < expiry_s
