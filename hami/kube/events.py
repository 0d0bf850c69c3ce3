"""Kubernetes events (core/v1) in the background: callers never wait, repeats become a count.

Source and reportingComponent are the component's name, as `kubectl describe` shows them (contract 3.5).
"""

from __future__ import annotations

import asyncio
import datetime
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog

from hami.core.errors import ApiError, HamiError, NotFoundError, TransportError
from hami.core.objects import Pod
from hami.kube import paths
from hami.kube.backoff import Backoff
from hami.kube.client import MERGE_PATCH, ApiClient
from hami.kube.ratelimit import Lane

MAX_MESSAGE_CHARS: Final = 1024
"""Upper bound of an event's message in the API (core/v1 validation)."""
NODE_EVENT_NAMESPACE: Final = "default"

_QUEUE_LIMIT: Final = 10_000
_REMEMBERED: Final = 4096
_ATTEMPTS: Final = 3
GIVE_WAY_S: Final = 10.0
"""Longest time that an event gives way to binds, which it only slows down."""
COLLECT_S: Final = 0.2
_AT_ONCE: Final = 8
_IN_A_ROW: Final = 48
"""An event costs the CPU of several when it is written alone: so they are collected, and written a few at once."""
_ELLIPSIS: Final = "..."

log = structlog.get_logger(__name__)


class _Subject(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The involvedObject of an event."""

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""
    api_version: str = "v1"
    resource_version: str = ""


class _Key(msgspec.Struct, frozen=True):
    """Events that differ in nothing else are one event with a count."""

    kind: str
    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Pending:
    subject: _Subject
    count: int
    first: str
    last: str
    queued_s: float
    """Monotonic."""


@dataclass(slots=True)
class _Written:
    name: str
    count: int


@dataclass(slots=True)
class EventStats:
    """For metrics."""

    written: int = 0
    dropped: int = 0


class EventRecorder:
    """Implements `hami.placement.ports.EventSink`. `run()` writes in the background; `drain()` before the end.

    At most `limit` different events wait; the newest is dropped and counted when there is no room. While binds write,
    events wait up to ten seconds.
    """

    def __init__(
        self, client: ApiClient, component: str, *, host: str = "", limit: int = _QUEUE_LIMIT, backoff_s: float = 0.5
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._limit = limit
        self._backoff_s = backoff_s
        self._waiting: OrderedDict[_Key, _Pending] = OrderedDict()
        self._written: OrderedDict[_Key, _Written] = OrderedDict()
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._hurry = asyncio.Event()
        self._running = False
        self.stats = EventStats()

    def pod_event(self, pod: Pod, *, warning: bool, reason: str, message: str) -> None:
        """Queues an event on `pod`, in its namespace."""
        meta = pod.metadata
        subject = _Subject("Pod", meta.name, meta.namespace, meta.uid, resource_version=meta.resource_version)
        self._queue(subject, warning, reason, message)

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Queues an event on a node. Its uid is the node's name, as kubelet writes it and `describe` looks it up."""
        self._queue(_Subject("Node", node, uid=node), warning, reason, message)

    def object_event(self, about: Mapping[str, Any], *, warning: bool, reason: str, message: str) -> None:
        """Queues an event on any object, as the API server has it."""
        meta = about["metadata"]
        subject = _Subject(
            about["kind"],
            meta["name"],
            meta.get("namespace", ""),
            meta.get("uid", ""),
            about["apiVersion"],
            meta.get("resourceVersion", ""),
        )
        self._queue(subject, warning, reason, message)

    async def run(self) -> None:
        """Writes queued events until cancelled."""
        self._running = True
        try:
            while True:
                await self._work.wait()
                with suppress(TimeoutError):
                    async with asyncio.timeout(COLLECT_S):
                        await self._hurry.wait()
                await self._write(_IN_A_ROW)
        finally:
            self._running = False

    async def drain(self, timeout_s: float = 2.0) -> None:
        """Waits until everything queued is written, at most `timeout_s`; writes it where `run` has ended."""
        self._hurry.set()
        try:
            async with asyncio.timeout(timeout_s):
                await (self._idle.wait() if self._running else self._write(len(self._waiting)))
        except TimeoutError:
            log.warning("events left unwritten", count=len(self._waiting))
        finally:
            self._hurry.clear()

    async def _write(self, most: int) -> None:
        """Writes what waits, the oldest first, a few at once; about `most` of it."""
        while most > 0 and self._waiting:
            await self._give_way()
            group = dict(self._waiting.popitem(last=False) for _ in range(min(_AT_ONCE, len(self._waiting))))
            most -= len(group)
            try:
                await asyncio.gather(*(self._write_in_order(keys, group) for keys in _by_object(group)))
            finally:
                # Of a write that was cancelled nobody knows whether it came about: rather twice than never.
                for key, pending in reversed(group.items()):
                    if key in self._waiting:
                        pending.count += self._waiting[key].count
                        pending.last = self._waiting[key].last
                    self._waiting[key] = pending
                    self._waiting.move_to_end(key, last=False)
        if not self._waiting:
            self._work.clear()
            self._idle.set()

    async def _give_way(self) -> None:
        """Lets binds write first, as long as there is time and room for what waits."""
        if 2 * len(self._waiting) < self._limit:
            first = next(iter(self._waiting.values()))
            await self._client.urgent.quiet(first.queued_s + GIVE_WAY_S)

    def _queue(self, subject: _Subject, warning: bool, reason: str, message: str) -> None:
        kind = "Warning" if warning else "Normal"
        key = _Key(subject.kind, subject.namespace, subject.name, subject.uid, kind, reason, _shorten(message))
        now = _now()
        pending = self._waiting.get(key)
        if pending is not None:
            pending.count += 1
            pending.last = now
        elif len(self._waiting) >= self._limit:
            self.stats.dropped += 1
        else:
            self._waiting[key] = _Pending(subject, 1, now, now, time.monotonic())
            self._idle.clear()
            self._work.set()

    async def _write_in_order(self, keys: list[_Key], group: dict[_Key, _Pending]) -> None:
        """Events of one object: who sees the last of them sees all."""
        for key in keys:
            await self._write_or_drop(key, group)

    async def _write_or_drop(self, key: _Key, group: dict[_Key, _Pending]) -> None:
        """Takes the event out of `group` when nothing more is to be done about it."""
        backoff = Backoff(self._backoff_s)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                await self._write_one(key, group[key])
            except TransportError as error:
                if attempt < _ATTEMPTS:
                    await asyncio.sleep(backoff.next_s())
                    continue
                self._drop(key, error)
            except ApiError as error:
                # Refused: the namespace is being deleted, or we lack the right. Repeating does not help.
                self._drop(key, error)
            else:
                self.stats.written += 1
            del group[key]
            return

    async def _write_one(self, key: _Key, pending: _Pending) -> None:
        namespace = key.namespace or NODE_EVENT_NAMESPACE
        known = self._written.get(key)
        if known is not None:
            try:
                await self._count_up(namespace, known, pending)
            except NotFoundError:
                # The server keeps events for an hour only.
                del self._written[key]
            else:
                self._written.move_to_end(key)
                return
        name = f"{key.name}.{secrets.token_hex(8)}"
        body = self._body(key, pending, namespace, name)
        await self._client.request("POST", paths.events_in(namespace), body, lane=Lane.EVENT)
        self._written[key] = _Written(name, pending.count)
        if len(self._written) > _REMEMBERED:
            self._written.popitem(last=False)

    async def _count_up(self, namespace: str, known: _Written, pending: _Pending) -> None:
        count = known.count + pending.count
        body = msgspec.json.encode({"count": count, "lastTimestamp": pending.last})
        path = paths.event(namespace, known.name)
        await self._client.request("PATCH", path, body, MERGE_PATCH, lane=Lane.EVENT, idempotent=True)
        known.count = count

    def _body(self, key: _Key, pending: _Pending, namespace: str, name: str) -> bytes:
        source = {"component": self._component}
        if self._host:
            source["host"] = self._host
        return msgspec.json.encode(
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": pending.subject,
                "type": key.type,
                "reason": key.reason,
                "message": key.message,
                "source": source,
                "reportingComponent": self._component,
                "reportingInstance": self._host,
                "count": pending.count,
                "firstTimestamp": pending.first,
                "lastTimestamp": pending.last,
            }
        )

    def _drop(self, key: _Key, error: HamiError) -> None:
        self.stats.dropped += 1
        log.warning("event not written", object=f"{key.namespace}/{key.name}", reason=key.reason, why=str(error))


def _shorten(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_CHARS else message[: MAX_MESSAGE_CHARS - len(_ELLIPSIS)] + _ELLIPSIS


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _by_object(keys: Iterable[_Key]) -> Iterable[list[_Key]]:
    """Keys of each object that events are about, in their order."""
    found: dict[tuple[str, str, str, str], list[_Key]] = {}
    for key in keys:
        found.setdefault((key.kind, key.namespace, key.name, key.uid), []).append(key)
    return found.values()
