"""Keeps a handler told about all objects of one kind: list, then watch, and again whenever that is needed.

States: empty, listing, watching. The first state of the world comes from `sendInitialEvents` where the server serves
it (1.34), else from consistent pages (design 6); after that a watch with bookmarks goes on from the last
resourceVersion, and only 410 and silence make it list again. Handlers must take any object twice and in any state:
they are told the latest state, not the difference. Objects are decoded straight from bytes into typed views
(spec/ecosystem 2.2).
"""

from __future__ import annotations

import asyncio
import enum
import functools
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import aiohttp
import msgspec
import structlog

from hami.core.errors import ApiError, GoneError, HamiError, TransportError
from hami.core.lenient import lenient
from hami.core.objects import ObjectMeta
from hami.core.versions import is_older
from hami.kube.backoff import Backoff
from hami.kube.client import ApiClient
from hami.kube.listing import PAGE_SIZE, ApiObject, pages
from hami.kube.status import decode_status, error_of_status
from hami.kube.taken_lists import Listing, OnReplaced, WholeList

_INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_WATCH_SECONDS: Final = 300
_IDLE_GRACE_S: Final = 30.0
_SILENCE_S: Final = 90.0
"""A server sends a bookmark about once a minute; a stream that brings nothing for so long is dead (report B55)."""
_SHORT_WATCH_S: Final = 1.0
"""A watch that ends sooner without a word is a failure: without a pause we would ask again in a tight loop."""
_INITIAL_EVENTS_IDLE_S: Final = 30.0
"""A server that serves initial events is never silent for that long before their end."""

log = structlog.get_logger(__name__)

T = TypeVar("T", bound=ApiObject)


class EventType(enum.StrEnum):
    """What happened to an object, as watch events name it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


OnEvent = Callable[[EventType, T], Awaitable[None] | None]


class _WatchEvent(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Bookmark(msgspec.Struct):
    metadata: ObjectMeta = ObjectMeta()


_event_decoder: Final = msgspec.json.Decoder(_WatchEvent)
_bookmark_decoder: Final = msgspec.json.Decoder(_Bookmark)


@dataclass(slots=True)
class ReflectorStats:
    """For metrics and health: how often it listed and watched, what it saw, when it last heard anything."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    failures: int = 0
    undecodable: int = 0
    last_heard_monotonic_s: float = 0.0

    def heard(self) -> None:
        self.last_heard_monotonic_s = time.monotonic()


class _InitialEventsNotServedError(HamiError):
    """The server does not know `sendInitialEvents`; list in pages instead."""


class Reflector(Generic[T]):
    """Watches `path`, decodes with `decoder`, and calls `on_replaced` and `on_event` on the event loop.

    `on_replaced(objects)` gives the complete state: what is not in it is gone. With `listing` in its place a list is
    handed over page by page and never held whole. `on_event(type, object)` gives one change. Either may return an
    awaitable, which is awaited before the next call, so that a large relist can be taken in slices. An exception in a
    handler is a fault of ours and ends `run`.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        decoder: msgspec.json.Decoder[T],
        on_replaced: OnReplaced[T] | None,
        on_event: OnEvent[T],
        *,
        listing: Callable[[], Listing[T]] | None = None,
        field_selector: str = "",
        label_selector: str = "",
        initial_events: bool = True,
        backoff: Backoff | None = None,
        watch_seconds: int = _WATCH_SECONDS,
        silence_s: float = _SILENCE_S,
        on_restored: Callable[[], None] | None = None,
    ) -> None:
        """`on_restored()` says that the server's history has gone back (etcd was restored from a backup): what the
        handler knows to be newer will never come. A complete list follows."""
        self._client = client
        self._path = path
        self._decoder = decoder
        if listing is None:
            assert on_replaced is not None, "a reflector needs on_replaced or listing"
            listing = functools.partial(WholeList, on_replaced)
        self._listing = listing
        self._on_event = on_event
        self._selectors = _selectors(field_selector, label_selector)
        self._initial_events = initial_events
        self._backoff = backoff or Backoff()
        self._watch_seconds = watch_seconds
        self._silence_s = silence_s
        self._on_restored = on_restored
        self._resource_version = ""
        self._reached = ""
        """The newest version that this server has shown, also before the last list."""
        self._log = log.bind(path=path)
        self.ready = asyncio.Event()
        """Set once the handler has had the first complete state; never cleared."""
        self.stats = ReflectorStats()

    async def run(self) -> None:
        """Runs until cancelled. Failures of the API server are waited out, never raised."""
        while True:
            started_s, heard_s = time.monotonic(), self.stats.last_heard_monotonic_s
            try:
                await self._sync_and_watch()
                if time.monotonic() - started_s >= _SHORT_WATCH_S or heard_s != self.stats.last_heard_monotonic_s:
                    continue
                self._log.warning("watch ended at once, will retry")
            except _InitialEventsNotServedError as error:
                self._log.info("initial events not served, listing in pages", why=str(error))
                self._initial_events = False
                continue
            except GoneError as error:
                self._log.info("watch expired, listing again", why=str(error))
                self._resource_version = ""
            except (ApiError, TransportError, msgspec.DecodeError) as error:
                self._log.warning("watch failed, will retry", why=str(error))
                if isinstance(error.__cause__, aiohttp.SocketTimeoutError):
                    # Who was silent may stay so: only a list shows what went by (report B55).
                    self._resource_version = ""
            self.stats.failures += 1
            await asyncio.sleep(self._backoff.next_s())

    async def _sync_and_watch(self) -> None:
        """One list (if there is no state to go on from) and one watch, to the watch's regular end."""
        if self._resource_version:
            await self._watch()
        elif self._initial_events:
            await self._watch_from_nothing()
        else:
            await self._list()
            await self._watch()

    async def _list(self) -> None:
        listing = self._listing()
        version = ""
        found = pages(self._client, self._path, self._decoder, self._selectors, page_size=PAGE_SIZE)
        async with aclosing(found):
            async for page in found:
                self.stats.heard()
                for problem in page.problems:
                    self._undecodable(problem)
                version = page.resource_version
                await listing.take(page.objects)
        await self._complete(listing, version)

    async def _complete(self, listing: Listing[T], version: str) -> None:
        self.stats.lists += 1
        self.stats.heard()
        if is_older(version, self._reached):
            self._take_restored(version)
        await listing.complete()
        self._go_on_from(version)
        self._backoff.reset()
        self.ready.set()

    def _take_restored(self, version: str) -> None:
        """Lists are consistent, so one that is older than what was seen before it comes from another history. What
        handlers compared with theirs while it came has to come again. Raises GoneError."""
        reached, self._reached = self._reached, ""
        self._log.warning("the server's history has gone back", known=reached, listed=version)
        if self._on_restored is not None:
            self._on_restored()
        raise GoneError(410, "Expired", f"version {version} was listed after {reached}: etcd has been restored")

    def _go_on_from(self, version: str) -> None:
        self._resource_version = version
        if not is_older(version, self._reached):
            self._reached = version

    async def _watch(self) -> None:
        self.stats.watches += 1
        query = self._watch_query({"resourceVersion": self._resource_version})
        async with aclosing(self._events(query)) as events:
            async for event in events:
                await self._take(event)

    async def _watch_from_nothing(self) -> None:
        """The first state as ADDED events up to a marked bookmark, then the watch goes on in the same stream."""
        self.stats.watches += 1
        query = self._watch_query({"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"})
        try:
            async with aclosing(self._events(query)) as events:
                await self._take_initial(events)
                async for event in events:
                    await self._take(event)
        except ApiError as error:
            if not self._resource_version and error.status in (400, 422):
                raise _InitialEventsNotServedError(str(error)) from error
            raise

    async def _take_initial(self, events: AsyncIterator[_WatchEvent]) -> None:
        listing = self._listing()
        batch: list[T] = []
        version = None
        try:
            async with asyncio.timeout(_INITIAL_EVENTS_IDLE_S) as silence:
                async for event in events:
                    silence.reschedule(asyncio.get_running_loop().time() + _INITIAL_EVENTS_IDLE_S)
                    version = _end_of_initial_events(event)
                    if version is not None:
                        break
                    if event.type != "BOOKMARK" and (found := self._decode(event)) is not None:
                        batch.append(found)
                    if len(batch) >= PAGE_SIZE:
                        await listing.take(batch)
                        batch = []
        except TimeoutError as error:
            raise _InitialEventsNotServedError("the server fell silent before their end") from error
        if version is None:
            raise _InitialEventsNotServedError("the stream ended before their end")
        await listing.take(batch)
        await self._complete(listing, version)

    async def _take(self, event: _WatchEvent) -> None:
        if event.type == "BOOKMARK":
            self._go_on_from(_bookmark_decoder.decode(event.object).metadata.resource_version)
        else:
            await self._deliver(event)
        self._backoff.reset()

    async def _deliver(self, event: _WatchEvent) -> None:
        found = self._decode(event)
        if found is None:
            return
        self.stats.events += 1
        await _finish(self._on_event(EventType(event.type), found))
        # Only after the handler has it: a watch that breaks in between brings the event once more.
        if found.metadata.resource_version:
            self._go_on_from(found.metadata.resource_version)

    def _decode(self, event: _WatchEvent) -> T | None:
        if event.type not in EventType.__members__:
            self._undecodable(f"watch event of type {event.type!r}")
            return None
        try:
            return lenient(self._decoder, event.object)
        except msgspec.DecodeError as error:
            self._undecodable(str(error))
            return None

    def _undecodable(self, problem: str) -> None:
        self.stats.undecodable += 1
        self._log.error("object cannot be decoded", problem=problem)

    async def _events(self, query: Mapping[str, str]) -> AsyncGenerator[_WatchEvent, None]:
        """Decoded events of one watch. An ERROR event becomes the error that its Status says."""
        idle_s = min(self._watch_seconds + _IDLE_GRACE_S, self._silence_s)
        async with aclosing(self._client.stream_lines(self._path, query, idle_timeout_s=idle_s)) as lines:
            async for line in lines:
                event = _event_decoder.decode(line)
                self.stats.heard()
                if event.type == "ERROR":
                    raise error_of_status(decode_status(bytes(event.object)))
                yield event

    def _watch_query(self, more: Mapping[str, str]) -> dict[str, str]:
        # Spread over half the span, so that all watches of a cluster do not end together.
        seconds = int(self._watch_seconds * (1 + random.random()) / 2) or 1  # noqa: S311
        return {
            **self._selectors,
            **more,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }


def _end_of_initial_events(event: _WatchEvent) -> str | None:
    """The resourceVersion of the bookmark that ends the initial events, None for any other event."""
    if event.type != "BOOKMARK":
        return None
    mark = _bookmark_decoder.decode(event.object).metadata
    return mark.resource_version if (mark.annotations or {}).get(_INITIAL_EVENTS_END) == "true" else None


async def _finish(result: Awaitable[None] | None) -> None:
    if result is not None:
        await result


def _selectors(field_selector: str, label_selector: str) -> dict[str, str]:
    given = {"fieldSelector": field_selector, "labelSelector": label_selector}
    return {key: value for key, value in given.items() if value}
