"""How objects leave the server: typed JSON, lists with pages, watch events, or tables for kubectl."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec

from hami.sim import errors
from hami.sim.apiserver import events, tables
from hami.sim.apiserver.kinds import NEW_EVENTS, Kind, Target
from hami.sim.apiserver.selectors import Matcher, field_selector, label_selector
from hami.sim.apiserver.store import Store, Stored
from hami.sim.objects import Obj

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class Query:
    """Parameters of a list or watch, read once. `revision` None means that none was given."""

    matches: Matcher
    selective: bool
    limit: int
    token: str
    revision: int | None
    send_initial_events: bool
    bookmarks: bool
    timeout_s: float | None
    table: bool

    @classmethod
    def read(cls, target: Target, query: dict[str, str], accept: str) -> Query:
        """Raises StatusError 400 on selectors or numbers that cannot be read."""
        by_label = label_selector(query.get("labelSelector", ""))
        by_field = field_selector(target.kind, query.get("fieldSelector", ""))
        name = target.name
        try:
            limit, timeout = int(query.get("limit") or 0), query.get("timeoutSeconds")
            revision = int(query["resourceVersion"]) if query.get("resourceVersion") else None
            timeout_s = float(timeout) if timeout else None
        except ValueError as error:
            raise errors.bad_request(f"invalid query parameter: {error}") from error
        return cls(
            lambda obj: by_label(obj) and by_field(obj) and (not name or obj["metadata"]["name"] == name),
            bool(query.get("labelSelector") or query.get("fieldSelector")),
            limit,
            query.get("continue", ""),
            revision,
            query.get("sendInitialEvents") == "true",
            query.get("allowWatchBookmarks") in ("true", "1"),
            timeout_s,
            wants_table(accept),
        )


def wants_table(accept: str) -> bool:
    """Whether the client prefers meta.k8s.io/v1 Table, as kubectl get does."""
    return "as=Table" in accept.partition(",")[0]


def encode(kind: Kind, obj: Obj) -> bytes:
    """One object with its kind and apiVersion in front."""
    shown = events.to_new(obj) if kind is NEW_EVENTS else obj
    return msgspec.json.encode({"kind": kind.kind, "apiVersion": kind.api_version, **shown})


def encode_stored(kind: Kind, stored: Stored) -> bytes:
    """The same from the JSON that storage keeps."""
    if kind is NEW_EVENTS:
        return encode(kind, stored.obj)
    return b'{"kind":"%s","apiVersion":"%s",' % (kind.kind.encode(), kind.api_version.encode()) + stored.raw[1:]


def _write_token(revision: int, offset: int) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode([revision, offset])).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        revision, offset = msgspec.json.decode(base64.urlsafe_b64decode(token), type=tuple[int, int])
    except (binascii.Error, msgspec.MsgspecError) as error:
        raise errors.bad_request("continue key is not valid") from error
    return revision, offset


def _page(store: Store, target: Target, query: Query) -> tuple[list[Stored], Obj]:
    """The items of this page and the list's metadata."""
    kind = target.kind
    if query.token:
        revision, offset = _read_token(query.token)
        items = store.snapshot(kind, revision)
    else:
        revision, offset = store.revision, 0
        items = [stored for stored in store.items(kind, target.namespace) if query.matches(stored.obj)]
    meta: Obj = {"resourceVersion": str(revision)}
    if not query.limit or (query.revision == 0 and not query.token):
        # With resourceVersion=0 the real server answers from its watch cache, which ignores limit.
        return items[offset:], meta
    end = offset + query.limit
    if end < len(items):
        store.keep_snapshot(kind, revision, items)
        meta["continue"] = _write_token(revision, end)
        if not query.selective:
            meta["remainingItemCount"] = len(items) - end
    return items[offset:end], meta


def encode_list(store: Store, target: Target, query: Query) -> bytes:
    """A list (page) as JSON; items carry no kind of their own, as in the real server's typed lists."""
    items, meta = _page(store, target, query)
    kind = target.kind
    if query.table:
        return msgspec.json.encode(tables.table(kind, [stored.obj for stored in items], meta))
    raws = [_item(kind, stored) for stored in items]
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": meta}
    return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(raws) + b"]}"


def _item(kind: Kind, stored: Stored) -> bytes:
    return msgspec.json.encode(events.to_new(stored.obj)) if kind is NEW_EVENTS else stored.raw


def encode_event(event_type: str, kind: Kind, stored: Stored, table: bool) -> bytes:
    """One line of a watch."""
    body = msgspec.json.encode(tables.table(kind, [stored.obj], {})) if table else encode_stored(kind, stored)
    return b'{"type":"%s","object":%s}\n' % (event_type.encode(), body)


def encode_bookmark(kind: Kind, revision: int, end_of_initial: bool) -> bytes:
    """A bookmark: nothing changed up to `revision`."""
    meta: Obj = {"resourceVersion": str(revision), "creationTimestamp": None}
    if end_of_initial:
        meta["annotations"] = {INITIAL_EVENTS_END: "true"}
    obj: Any = {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": meta}
    return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"


def encode_error(error: errors.StatusError) -> bytes:
    """The last line of a watch that cannot go on."""
    return msgspec.json.encode({"type": "ERROR", "object": error.status()}) + b"\n"
