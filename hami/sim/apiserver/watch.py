"""Watches: which changes a client sees, in which order, and when the stream ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from hami.sim import errors
from hami.sim.apiserver import views
from hami.sim.apiserver.kinds import Target
from hami.sim.apiserver.store import Change, Store, Stored, Subscription
from hami.sim.apiserver.views import Query

_DEFAULT_TIMEOUT_S: Final = 1800.0


def _visible(change: Change, target: Target, query: Query) -> tuple[str, Stored] | None:
    """The event as this watch sees it: an object that begins to match is ADDED, one that no longer does is DELETED."""
    if target.namespace and change.after.obj["metadata"].get("namespace") != target.namespace:
        return None
    is_in = change.type != "DELETED" and query.matches(change.after.obj)
    was_in = change.before is not None and query.matches(change.before.obj)
    if is_in:
        return ("MODIFIED" if was_in else "ADDED"), change.after
    return ("DELETED", change.after) if was_in else None


class Watch:
    """One watch request as a stream of JSON lines; ends at its timeout or when it is cut."""

    def __init__(self, store: Store, target: Target, query: Query, bookmark_interval_s: float) -> None:
        self._store, self._target, self._query = store, target, query
        self._bookmark_interval_s = bookmark_interval_s

    async def lines(self) -> AsyncIterator[bytes]:
        """Chunks of whole lines. A resourceVersion that is too old gives one ERROR line with status 410."""
        kind, query = self._target.kind, self._query
        fresh = query.send_initial_events or not query.revision
        try:
            subscription = self._store.subscribe(kind, None if fresh else query.revision)
        except errors.StatusError as error:
            yield views.encode_error(error)
            return
        try:
            if fresh:
                yield self._initial()
            async for chunk in self._changes(subscription):
                yield chunk
        finally:
            self._store.unsubscribe(kind, subscription)

    def _initial(self) -> bytes:
        kind, query = self._target.kind, self._query
        items = self._store.items(kind, self._target.namespace)
        lines = [
            views.encode_event("ADDED", kind, stored, query.table) for stored in items if query.matches(stored.obj)
        ]
        if query.send_initial_events and query.bookmarks:
            lines.append(views.encode_bookmark(kind, self._store.revision, True))
        return b"".join(lines)

    async def _changes(self, subscription: Subscription) -> AsyncIterator[bytes]:
        query, kind = self._query, self._target.kind
        limit_s = _DEFAULT_TIMEOUT_S if query.timeout_s is None else query.timeout_s
        deadline = time.monotonic() + limit_s
        while True:
            left_s = deadline - time.monotonic()
            changes: list[Change | None] = []
            try:
                async with asyncio.timeout(max(min(left_s, self._bookmark_interval_s), 0)):
                    changes.append(await subscription.get())
            except TimeoutError:
                # A change may have come in the same turn; a bookmark ahead of it would hide it from who resumes there.
                pass
            changes += subscription.drain()
            chunk = b"".join(self._line(change) for change in changes if change is not None)
            if not changes and query.bookmarks:
                chunk = views.encode_bookmark(kind, self._store.revision, False)
            if chunk:
                yield chunk
            if None in changes or time.monotonic() >= deadline:
                return

    def _line(self, change: Change) -> bytes:
        seen = _visible(change, self._target, self._query)
        if seen is None:
            return b""
        return views.encode_event(seen[0], self._target.kind, seen[1], self._query.table)
