"""Why a bind failed, and what has to be undone."""

from __future__ import annotations

from typing import Final

from hami.core.errors import ApiError, HamiError, TransportError

_TOO_MANY_REQUESTS: Final = 429
_SERVER_FAULT: Final = 500


class BindError(HamiError):
    """A bind failed with this text.

    `gone`: pod or node does not exist any more, so the reservation is given back; otherwise it is kept for the retry
    (report B67). `keep_token`: the token is not ours any more, or the Binding may still take effect. `token`: one that
    may have been written though nobody could confirm it.
    """

    def __init__(self, message: str, *, gone: bool = False, keep_token: bool = False, token: str = "") -> None:
        super().__init__(message)
        self.gone = gone
        self.keep_token = keep_token
        self.token = token


def contention(node: str, lock: str) -> BindError:
    """Upstream's words first, then who is in the way (spec/scheduler 5, step 3a)."""
    holder = f" (held by {lock})" if lock else ""
    return BindError(f"timed out waiting for node {node} to be unlocked: node lock contention{holder}")


def may_have_happened(error: HamiError) -> bool:
    """Whether a write that failed like this may have taken effect, or may work if it is tried again."""
    if isinstance(error, ApiError):
        return error.status == _TOO_MANY_REQUESTS or error.status >= _SERVER_FAULT
    return isinstance(error, TransportError)
