"""What a kind does to an object on its way into storage: defaults, what a write may touch, validation."""

from __future__ import annotations

import re
from typing import Final

from hami.sim import errors, quantity
from hami.sim.apiserver import events, names, pods, shapes
from hami.sim.apiserver.kinds import EVENTS, LEASES, MUTATING, NAMESPACES, NODES, PODS, QUOTAS, Kind
from hami.sim.errors import FieldFault
from hami.sim.objects import Obj, clone, dig

_SERVER_OWNED: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
_MICRO_TIMES: Final = {
    "leases": (("spec", "renewTime"), ("spec", "acquireTime")),
    "events": (("eventTime",), ("series", "lastObservedTime")),
}
_MICRO_TIME: Final = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)$")
"""metav1.MicroTime insists on six digits of a second."""


def _cannot_handle(kind: Kind, why: str) -> errors.StatusError:
    return errors.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


def check_shape(kind: Kind, obj: Obj) -> None:
    """What Go's decoder would refuse. Raises StatusError 400."""
    try:
        shapes.check_metadata(kind.kind, obj)
        if kind is PODS:
            shapes.check_pod(obj)
    except shapes.ShapeError as error:
        raise _cannot_handle(kind, str(error)) from error
    for path in _MICRO_TIMES.get(kind.collection, ()):
        value = dig(obj, *path)
        if isinstance(value, str) and not _MICRO_TIME.match(value):
            layout = "2006-01-02T15:04:05.000000Z07:00"
            raise _cannot_handle(kind, f'parsing time "{value}" as "{layout}": cannot parse "Z" as ".000000"')


def set_defaults(kind: Kind, obj: Obj) -> None:
    """Defaults and canonical quantities, in place. Raises StatusError 400 where a quantity cannot be read."""
    try:
        if kind is PODS:
            pods.set_defaults(obj)
        elif kind is NODES:
            _canonical_parts(obj.get("status") or {}, ("capacity", "allocatable"))
        elif kind is QUOTAS:
            _canonical_parts(obj.get("spec") or {}, ("hard",))
    except ValueError as error:
        raise _cannot_handle(kind, str(error)) from error
    if kind is MUTATING:
        for webhook in obj.get("webhooks") or []:
            for key, value in _WEBHOOK_DEFAULTS.items():
                webhook.setdefault(key, clone(value))
            for rule in webhook.get("rules") or []:
                rule.setdefault("scope", "*")


_WEBHOOK_DEFAULTS: Final[Obj] = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "timeoutSeconds": 10,
    "reinvocationPolicy": "Never",
    "namespaceSelector": {},
    "objectSelector": {},
}


def _canonical_parts(holder: Obj, parts: tuple[str, ...]) -> None:
    for part in parts:
        if holder.get(part):
            holder[part] = {name: quantity.canonical(value) for name, value in holder[part].items()}


def prepare_create(kind: Kind, obj: Obj) -> None:
    """Fill in what the server owns in a new object, in place."""
    meta = obj["metadata"]
    for key in (*_SERVER_OWNED, "resourceVersion", "managedFields"):
        meta.pop(key, None)
    if kind is PODS:
        pods.prepare_create(obj)
    elif kind is NAMESPACES:
        meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
        obj["spec"] = {"finalizers": ["kubernetes"]}
        obj["status"] = {"phase": "Active"}
    elif kind is NODES:
        obj.setdefault("spec", {})
        obj.setdefault("status", {})
    elif kind is MUTATING:
        meta["generation"] = 1


def prepare_update(kind: Kind, subresource: str, obj: Obj, old: Obj) -> Obj:
    """The object that a write to the main resource or to `status` may make out of the old one."""
    meta = {key: value for key, value in obj.get("metadata", {}).items() if key != "managedFields"}
    for key in (*_SERVER_OWNED, "generation"):
        meta.pop(key, None)
        if key in old["metadata"]:
            meta[key] = old["metadata"][key]
    meta["name"] = old["metadata"]["name"]
    result = {**obj, "metadata": meta}
    if kind.status:
        kept = "spec" if subresource == "status" else "status"
        result.pop(kept, None)
        if kept in old:
            result[kept] = old[kept]
    if kind is PODS and subresource == "status" and "ownerReferences" in old["metadata"]:
        meta["ownerReferences"] = old["metadata"]["ownerReferences"]
    return result


def validate_create(kind: Kind, obj: Obj) -> None:
    """Raises StatusError 422 with every finding."""
    name = obj["metadata"]["name"]
    check = names.label_faults if kind is NAMESPACES else names.subdomain_faults
    faults = check("metadata.name", name) if kind is not EVENTS else []
    if kind is PODS:
        faults += pods.validate(obj)
    elif kind.collection == EVENTS.collection:
        faults += events.validate(obj, new_style=kind is not EVENTS)
    elif kind is LEASES:
        faults += _lease_faults(obj)
    _raise(kind, name, faults)


def _lease_faults(lease: Obj) -> list[FieldFault]:
    duration = dig(lease, "spec", "leaseDurationSeconds", default=1)
    if duration > 0:
        return []
    return [FieldFault.invalid("spec.leaseDurationSeconds", duration, "must be greater than 0")]


def validate_update(kind: Kind, subresource: str, obj: Obj, old: Obj) -> None:
    """Raises StatusError 422."""
    faults: list[FieldFault] = []
    if kind is PODS and not subresource:
        faults = pods.validate_update(obj, old)
    elif kind is LEASES:
        faults = _lease_faults(obj)
    _raise(kind, obj["metadata"]["name"], faults)


def _raise(kind: Kind, name: str, faults: list[FieldFault]) -> None:
    if faults:
        raise errors.invalid(kind.group, kind.kind, name, faults)
