"""A bounded memory of uids: when there are too many, the older half is forgotten."""

from __future__ import annotations

from typing import Final

_MOST: Final = 4096


class RecentUids:
    """The uids that were added last."""

    __slots__ = ("_uids",)

    def __init__(self) -> None:
        self._uids: dict[str, None] = {}

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def __len__(self) -> int:
        return len(self._uids)

    def add(self, uid: str) -> None:
        self._uids[uid] = None
        if len(self._uids) > _MOST:
            self._uids = dict.fromkeys(list(self._uids)[_MOST // 2 :])

    def discard(self, uid: str) -> None:
        self._uids.pop(uid, None)
