"""Deletion: preconditions, grace periods and finalizers, as registry/rest/delete.go decides them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from hami.sim import errors
from hami.sim.apiserver.kinds import PODS, Kind
from hami.sim.objects import Obj, dig, now, parse_time, timestamp


@dataclass(frozen=True, slots=True)
class DeleteOptions:
    """What the client asked for; grace None means the object's own."""

    grace_s: int | None = None
    uid: str = ""
    resource_version: str = ""

    @classmethod
    def read(cls, body: Obj, query: dict[str, str]) -> DeleteOptions:
        grace = body.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        wanted = body.get("preconditions") or {}
        return cls(
            None if grace is None else max(int(grace), 0) if int(grace) >= 0 else 1,
            wanted.get("uid") or "",
            wanted.get("resourceVersion") or "",
        )


def check_preconditions(kind: Kind, obj: Obj, options: DeleteOptions) -> None:
    """Raises StatusError 409 where uid or resourceVersion is another one."""
    meta = obj["metadata"]
    for wanted, have, label, guess in (
        (options.uid, meta["uid"], "UID", "deleted and then recreated"),
        (options.resource_version, meta["resourceVersion"], "ResourceVersion", "modified"),
    ):
        if wanted and wanted != have:
            why = (
                f"the {label} in the precondition ({wanted}) does not match the {label} in record ({have}). "
                f"The object might have been {guess}"
            )
            raise errors.conflict(kind.group, kind.kind, meta["name"], why)


def _pod_grace_s(pod: Obj, options: DeleteOptions) -> int:
    """Seconds that a kubelet has; 0 where no kubelet has to act."""
    if not dig(pod, "spec", "nodeName") or dig(pod, "status", "phase") in ("Failed", "Succeeded"):
        return 0
    if options.grace_s is not None:
        return options.grace_s
    own = int(dig(pod, "spec", "terminationGracePeriodSeconds", default=0))
    return own if own >= 0 else 1


def _mark(obj: Obj, moment: dt.datetime, grace_s: int) -> Obj:
    meta = {**obj["metadata"], "deletionTimestamp": timestamp(moment), "deletionGracePeriodSeconds": grace_s}
    if "generation" in meta and "deletionTimestamp" not in obj["metadata"]:
        meta["generation"] += 1
    return {**obj, "metadata": meta}


def _shorten(obj: Obj, options: DeleteOptions) -> Obj:
    """A second deletion: it may only shorten the grace period."""
    meta = obj["metadata"]
    pending = meta.get("deletionGracePeriodSeconds") or 0
    if pending == 0 or options.grace_s is None or options.grace_s >= pending:
        return obj
    began = parse_time(meta["deletionTimestamp"]) - dt.timedelta(seconds=pending)
    moment, grace_s = began + dt.timedelta(seconds=options.grace_s), options.grace_s
    if moment < now():
        moment, grace_s = now(), min(grace_s, 1)
    return _mark(obj, moment, grace_s)


def decide(kind: Kind, obj: Obj, options: DeleteOptions) -> tuple[Obj, bool]:
    """The object with its deletion marks, and whether it stays for now.

    A pod is marked even where it goes at once: watchers of the real server see MODIFIED, then DELETED.
    """
    deleted_before = "deletionTimestamp" in obj["metadata"]
    if kind is PODS:
        if deleted_before:
            obj = _shorten(obj, options)
        else:
            grace_s = _pod_grace_s(obj, options)
            obj = _mark(obj, now() + dt.timedelta(seconds=grace_s), grace_s)
        if obj["metadata"]["deletionGracePeriodSeconds"]:
            return obj, True
    if not obj["metadata"].get("finalizers"):
        return obj, False
    return obj if "deletionTimestamp" in obj["metadata"] else _mark(obj, now(), 0), True


def finished(obj: Obj) -> bool:
    """Whether an update has removed the last thing that kept a deleted object: then storage drops it."""
    meta = obj["metadata"]
    return "deletionTimestamp" in meta and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds")
