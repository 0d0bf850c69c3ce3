"""The hand-off token: node annotation `hami.io/mutex.lock`, which names the pod whose Allocate call is next.

Parsed and judged here, written by others. Beside it `hami.io/bind-epoch` tells which scheduler wrote it, and which
version of the pod the Binding that follows asks for. Source: spec/scheduler 2.7, design 3, docs/adr/0004, reports B61,
B62, B71, B76.
"""

from __future__ import annotations

import enum
import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from hami.core.errors import DecodeError
from hami.core.keys import BIND_PHASE, NODE_LOCK, PHASE_FAILED, PHASE_SUCCESS
from hami.core.objects import Node, Pod
from hami.core.versions import is_older

_RFC3339: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})", re.ASCII
)
_PARTS: Final = 3
_EPOCH_PARTS: Final = 4


class Token(msgspec.Struct, frozen=True):
    """Who holds a node since when. Tokens of old releases have the time only: both names are then empty."""

    time_unix_s: int
    namespace: str
    pod: str

    @property
    def key(self) -> str:
        """`namespace/pod`; empty if the token names nobody."""
        return f"{self.namespace}/{self.pod}" if self.pod else ""


class BindEpoch(msgspec.Struct, frozen=True):
    """Who wrote a token, and for which Binding.

    `leader` is identity and term. `stamp` is the token's time: one that another scheduler wrote over it later has
    another. The Binding under this token asks for the pod `uid` in version `pod_version` or an older one.
    """

    leader: str = ""
    stamp: str = ""
    uid: str = ""
    pod_version: str = ""

    def belongs_to(self, token_text: str) -> bool:
        """Whether it was written together with this token, and names the Binding."""
        return bool(self.stamp and self.uid and self.pod_version) and self.stamp == token_text.partition(",")[0]

    def is_past(self, owner: Pod) -> bool:
        """Whether no Binding that was prepared under the token can succeed any more: the pod was written since, or it
        is another one of that name. A pod that is read late is never called past too early."""
        return owner.metadata.uid != self.uid or is_older(self.pod_version, owner.metadata.resource_version)


class TokenAction(enum.Enum):
    """What to do about a token that is in the way."""

    KEEP = "keep"
    """Wait."""
    FREE = "free"
    """Take it at once."""
    FENCE = "fence"
    """Patch the owner first, so that a late Binding of it fails, then take the token."""


class TokenVerdict(msgspec.Struct, frozen=True):
    """What to do about a token, and the fact that says so, for logs and events."""

    action: TokenAction
    why: str


def encode_token(namespace: str, pod: str, unix_s: float) -> str:
    """`<RFC 3339, UTC, whole seconds>,<namespace>,<pod>`."""
    stamp = datetime.fromtimestamp(int(unix_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{stamp},{namespace},{pod}"


def encode_epoch(epoch: BindEpoch) -> str:
    """`<identity>/<term>,<time of the token>,<pod uid>,<pod resourceVersion>`."""
    return ",".join((epoch.leader, epoch.stamp, epoch.uid, epoch.pod_version))


def parse_epoch(text: str) -> BindEpoch:
    """Reads what any release wrote; what is missing or makes no sense is empty."""
    leader, *rest = text.split(",")
    return BindEpoch(leader, *rest) if len(rest) == _EPOCH_PARTS - 1 else BindEpoch(leader)


def parse_token(text: str) -> Token:
    """Reads a token of any release. Raises DecodeError; such a token counts as expired."""
    stamp, *owner = text.split(",")
    if len(owner) not in (0, _PARTS - 1) or (owner and not all(owner)):
        raise DecodeError(f"annotation {NODE_LOCK}", f"'{text}' is not '<time>,<namespace>,<pod>'")
    namespace, pod = owner or ("", "")
    return Token(_unix_seconds(stamp, text), namespace, pod)


def readable_token(text: str) -> Token | None:
    """The token; None if there is none or it cannot be read: such a token names nobody and counts as expired."""
    if not text:
        return None
    try:
        return parse_token(text)
    except DecodeError:
        return None


def token_of(node: Node) -> Token | None:
    """The token on `node`, as `readable_token` has it."""
    return readable_token(node.annotations.get(NODE_LOCK, ""))


def judge(token: Token, owner: Pod | None, node: str, now_unix_s: float, expiry_s: float) -> TokenVerdict:
    """What a bind that finds `token` on `node` should do.

    `owner` is the pod that the token names, as it is now; None if it does not exist. Freed at once: an owner that is
    gone, finished, bound elsewhere, deleted before it was bound, or served. An owner that is bound here and was not
    served within `expiry_s` has lost its turn; one that is alive and unbound by then is fenced.
    """
    expired = not -expiry_s <= now_unix_s - token.time_unix_s < expiry_s
    if not token.pod:
        action = TokenAction.FREE if expired else TokenAction.KEEP
        return TokenVerdict(action, "names no owner" + (" and has expired" if expired else ""))
    if owner is None:
        return TokenVerdict(TokenAction.FREE, f"owner {token.key} is gone")
    settled = _settled(owner, node)
    if settled:
        return TokenVerdict(TokenAction.FREE, f"owner {token.key} {settled}")
    if not expired:
        return TokenVerdict(TokenAction.KEEP, f"owner {token.key} is on its way")
    if owner.spec.node_name:
        return TokenVerdict(TokenAction.FREE, f"owner {token.key} was not served within {expiry_s:g} s")
    return TokenVerdict(TokenAction.FENCE, f"owner {token.key} is alive and was not bound within {expiry_s:g} s")


def _settled(owner: Pod, node: str) -> str:
    """Why the owner needs the token no more; empty if it may still need it."""
    bound_to = owner.spec.node_name
    if owner.finished:
        return f"has ended ({owner.status.phase})"
    if bound_to and bound_to != node:
        return f"is bound to {bound_to}"
    if not bound_to:
        return "is being deleted before it was bound" if owner.metadata.deletion_timestamp else ""
    if owner.status.phase == "Running":
        return "is running"
    phase = owner.annotations.get(BIND_PHASE)
    return f"has bind phase {phase}" if phase in (PHASE_SUCCESS, PHASE_FAILED) else ""


def _unix_seconds(stamp: str, text: str) -> int:
    if _RFC3339.fullmatch(stamp) is None:
        raise DecodeError(f"annotation {NODE_LOCK}", f"'{text}' does not begin with an RFC 3339 time")
    # Digits of a second beyond the sixth are cut: datetime holds microseconds, and whole seconds are enough.
    try:
        return int(datetime.fromisoformat(re.sub(r"(\.[0-9]{1,6})[0-9]*", r"\1", stamp)).timestamp())
    except ValueError as error:
        raise DecodeError(f"annotation {NODE_LOCK}", f"'{text}' has no valid time: {error}") from error
