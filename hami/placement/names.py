"""Node names of a `/filter` request, kept as the raw JSON bytes they came in (design 6).

Names are DNS-1123, so a name with its quotes occurs in the bytes exactly if the list contains it. A list with an
escape in it (no client writes one) is decoded instead.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

_decoder = msgspec.json.Decoder(list[str])


class NodeNames:
    """A JSON list of node names that is decoded only when somebody needs the whole list."""

    __slots__ = ("_list", "_probe", "_raw", "_set")

    def __init__(self, raw: bytes) -> None:
        """`raw` is a JSON list of strings; whatever is asked of anything else raises msgspec.DecodeError."""
        self._raw = raw
        self._probe = b"\\" not in raw and raw.lstrip().startswith(b"[")
        self._list: list[str] | None = None
        self._set: frozenset[str] | None = None

    @classmethod
    def of(cls, names: Iterable[str]) -> NodeNames:
        return cls(msgspec.json.encode(list(names)))

    @property
    def count(self) -> int:
        return self._raw.count(b'"') // 2 if self._probe and self._list is None else len(self.list())

    def contains(self, name: str) -> bool:
        if self._probe:
            return b'"%b"' % name.encode() in self._raw
        if self._set is None:
            self._set = frozenset(self.list())
        return name in self._set

    def list(self) -> list[str]:
        if self._list is None:
            self._list = _decoder.decode(self._raw)
        return self._list
