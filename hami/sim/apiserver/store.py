"""Storage with one revision counter, compare-and-swap, history for watches and snapshots for paged lists.

What etcd and the watch cache are to kube-apiserver. Everything happens in one event loop, so each call is atomic.
Objects are kept without kind and apiVersion (as typed lists show them) and are never changed in place.
"""

from __future__ import annotations

import asyncio
import bisect
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from hami.sim import errors
from hami.sim.apiserver.kinds import Kind
from hami.sim.objects import Obj, timestamp

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped) and name."""

_SNAPSHOTS_KEPT: Final = 64
_FIRST_REVISION: Final = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    """One version of an object, with its JSON so that lists and watches need not encode again."""

    obj: Obj
    raw: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """One write: `type` as watches call it, the version before (None on create) and after (the last one on delete)."""

    type: str
    before: Stored | None
    after: Stored
    revision: int


class Subscription:
    """Changes of one collection for one watcher. `None` from `get` means that the stream was cut."""

    def __init__(self, backlog: Iterable[Change]) -> None:
        self._queue: asyncio.Queue[Change | None] = asyncio.Queue()
        for change in backlog:
            self._queue.put_nowait(change)

    def push(self, change: Change) -> None:
        self._queue.put_nowait(change)

    def cut(self) -> None:
        self._queue.put_nowait(None)

    async def get(self) -> Change | None:
        return await self._queue.get()

    def drain(self) -> list[Change | None]:
        """Everything that waits, at once."""
        waiting = []
        while not self._queue.empty():
            waiting.append(self._queue.get_nowait())
        return waiting


@dataclass(slots=True)
class _Collection:
    objects: dict[Key, Stored] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=deque)
    floor: int = _FIRST_REVISION
    """The highest revision that has been forgotten: a watch from below it cannot be served."""
    subscriptions: set[Subscription] = field(default_factory=set)
    order: list[Key] = field(default_factory=list)


class Store:
    """All collections. `history_limit` is how many changes each keeps for watches."""

    def __init__(self, history_limit: int = 10_000) -> None:
        self.revision = _FIRST_REVISION
        self._history_limit = history_limit
        self._collections: dict[str, _Collection] = {}
        self._snapshots: OrderedDict[tuple[str, int], list[Stored]] = OrderedDict()

    def _of(self, kind: Kind) -> _Collection:
        return self._collections.setdefault(kind.collection, _Collection())

    def find(self, kind: Kind, namespace: str, name: str) -> Stored | None:
        return self._of(kind).objects.get((namespace, name))

    def get(self, kind: Kind, namespace: str, name: str) -> Stored:
        """Raises StatusError 404 where there is none."""
        stored = self.find(kind, namespace, name)
        if stored is None:
            raise errors.not_found(kind.group, kind.plural, name)
        return stored

    def items(self, kind: Kind, namespace: str = "") -> list[Stored]:
        """Everything in the collection (of one namespace), ordered as etcd orders keys."""
        collection = self._of(kind)
        return [collection.objects[key] for key in collection.order if not namespace or key[0] == namespace]

    def create(self, kind: Kind, obj: Obj) -> Stored:
        """Add a new object; uid, creationTimestamp and resourceVersion are set here. Raises StatusError 409."""
        meta = obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._of(kind).objects:
            raise errors.already_exists(kind.group, kind.plural, meta["name"])
        meta = {**meta, "uid": str(uuid.uuid4()), "creationTimestamp": timestamp()}
        return self._commit(kind, key, {**obj, "metadata": meta}, None, "ADDED")

    def update(self, kind: Kind, before: Stored, obj: Obj) -> Stored:
        """Replace `before`, which must still be the current version, by `obj`. A write that changes nothing is none.

        Raises StatusError 409 where another write came first, 404 where the object is gone.
        """
        meta = before.obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        current = self.get(kind, *key)
        if current.revision != before.revision:
            raise errors.conflict(kind.group, kind.plural, meta["name"], errors.MODIFIED)
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": meta["resourceVersion"]}}
        if obj == before.obj:
            return before
        return self._commit(kind, key, obj, before, "MODIFIED")

    def delete(self, kind: Kind, before: Stored) -> Stored:
        """Remove the object; the answer carries the revision of the deletion, as watches show it."""
        meta = before.obj["metadata"]
        key = (meta.get("namespace", ""), meta["name"])
        self.get(kind, *key)
        return self._commit(kind, key, before.obj, before, "DELETED")

    def _commit(self, kind: Kind, key: Key, obj: Obj, before: Stored | None, change_type: str) -> Stored:
        self.revision += 1
        obj = {**obj, "metadata": {**obj["metadata"], "resourceVersion": str(self.revision)}}
        stored = Stored(obj, msgspec.json.encode(obj), self.revision)
        collection = self._of(kind)
        if change_type == "DELETED":
            del collection.objects[key]
            collection.order.remove(key)
        else:
            if before is None:
                bisect.insort(collection.order, key)
            collection.objects[key] = stored
        change = Change(change_type, before, stored, self.revision)
        collection.history.append(change)
        while len(collection.history) > self._history_limit:
            collection.floor = collection.history.popleft().revision
        for subscription in collection.subscriptions:
            subscription.push(change)
        return stored

    def subscribe(self, kind: Kind, revision: int | None) -> Subscription:
        """Changes after `revision` (None: from now on). Raises StatusError 410 where that is forgotten."""
        collection = self._of(kind)
        backlog: Iterable[Change] = ()
        if revision is not None:
            if revision < collection.floor:
                raise errors.expired(f"too old resource version: {revision} ({collection.floor})")
            backlog = [change for change in collection.history if change.revision > revision]
        subscription = Subscription(backlog)
        collection.subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, kind: Kind, subscription: Subscription) -> None:
        self._of(kind).subscriptions.discard(subscription)

    def cut_watches(self, matches: Callable[[str], bool] = lambda _: True) -> int:
        """End every running watch of the collections that `matches` accepts; returns how many."""
        cut = 0
        for name, collection in self._collections.items():
            if matches(name):
                for subscription in collection.subscriptions:
                    subscription.cut()
                    cut += 1
        return cut

    def forget_history(self) -> None:
        """What compaction does: watches and pages from older revisions answer 410 from now on."""
        for collection in self._collections.values():
            collection.history.clear()
            collection.floor = self.revision
        self._snapshots.clear()

    def keep_snapshot(self, kind: Kind, revision: int, items: list[Stored]) -> None:
        """Remember a list for its later pages."""
        self._snapshots[(kind.collection, revision)] = items
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._snapshots.popitem(last=False)

    def snapshot(self, kind: Kind, revision: int) -> list[Stored]:
        """Raises StatusError 410 where it is forgotten."""
        items = self._snapshots.get((kind.collection, revision))
        if items is None:
            raise errors.expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You can start a new list without the continue parameter."
            )
        return items
