"""The handshake annotation as a sign of life (spec/scheduler 2.6, design 3 "Registration").

Stamps are hints: clocks differ and old writers left the zone out. So the stamp only says how old the first sight
of a text is; from then on every change of the text is the sign of life, measured on our own clock.
"""

from __future__ import annotations

import datetime
import enum
import re
from typing import Final

import msgspec

_STAMP = re.compile(
    r"(?P<date>\d{4}[-.]\d\d[-.]\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?:\.\d+)?\s*(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_ZONE_STEP_S: Final = 900.0
"""Every time zone is a multiple of 15 minutes away from UTC."""
_SKEW_S: Final = 60.0
"""A stamp without a zone that lies this little in the future is a clock that runs ahead."""


class HandshakeKind(enum.Enum):
    """What the value says."""

    ABSENT = "absent"
    """No value, `Deleted_...`, or one that cannot be read: says nothing."""
    REPORTED = "reported"
    """The plugin's own stamp."""
    REQUESTING = "requesting"
    """A scheduler asked and nobody has answered yet."""


class Handshake(msgspec.Struct, frozen=True):
    """`age_s`: how long ago the stamp was written, never negative; 0 for ABSENT."""

    kind: HandshakeKind
    age_s: float = 0.0


ABSENT: Final = Handshake(HandshakeKind.ABSENT)


def read_handshake(text: str, now_unix_s: float) -> Handshake:
    """Reads every form ever written; a value that makes no sense counts as absent, never as an error."""
    if text.startswith("Reported"):
        kind = HandshakeKind.REPORTED
    elif text.startswith("Requesting_"):
        kind = HandshakeKind.REQUESTING
    else:
        return ABSENT
    age_s = _age_s(text, now_unix_s)
    return ABSENT if age_s is None else Handshake(kind, age_s)


def _age_s(text: str, now_unix_s: float) -> float | None:
    found = _STAMP.search(text)
    if found is None:
        return None
    zone = found["zone"]
    try:
        stamp = datetime.datetime.fromisoformat(f"{found['date'].replace('.', '-')}T{found['time']}{zone or 'Z'}")
    except ValueError:
        return None
    age_s = now_unix_s - stamp.timestamp()
    if zone is None:
        age_s %= _ZONE_STEP_S
        return 0.0 if age_s > _ZONE_STEP_S - _SKEW_S else age_s
    return max(age_s, 0.0)
