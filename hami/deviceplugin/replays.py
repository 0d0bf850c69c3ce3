"""Answers given before, for a kubelet that restarted between our answer and its checkpoint and asks again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from hami.core.container_edits import ContainerEdits
from hami.core.objects import Pod
from hami.deviceplugin.node_view import Found

_REMEMBERED: Final = 256

_Key = tuple[tuple[str, ...], ...]


class Record(msgspec.Struct, frozen=True):
    """One answered call."""

    pod_key: str
    pod_uid: str
    generation: int
    edits: list[ContainerEdits]


class Replays:
    """Remembers the latest answers by kubelet's device ids.

    An answer is given again only to the same ids, for a pod that is still pending on this node, and only after kubelet
    has registered us anew since: a running kubelet never asks twice, and while it runs the same ids may already
    belong to another pod.
    """

    def __init__(self, generation: Callable[[], int]) -> None:
        self._generation = generation
        self._records: OrderedDict[_Key, Record] = OrderedDict()

    def remember(self, requests: Sequence[Sequence[str]], found: Found, edits: list[ContainerEdits]) -> None:
        key = _key(requests)
        self._records[key] = Record(found.pod.key, found.pod.metadata.uid, self._generation(), edits)
        self._records.move_to_end(key)
        if len(self._records) > _REMEMBERED:
            self._records.popitem(last=False)

    def find(self, requests: Sequence[Sequence[str]], pods: Sequence[Pod]) -> Record | None:
        """The earlier answer, if it may be given again; `pods` are those of this node, read live."""
        record = self._records.get(_key(requests))
        if record is None or record.generation >= self._generation():
            return None
        waiting = {pod.metadata.uid for pod in pods if pod.status.phase == "Pending"}
        return record if record.pod_uid in waiting else None


def _key(requests: Sequence[Sequence[str]]) -> _Key:
    return tuple(tuple(sorted(ids)) for ids in requests)
