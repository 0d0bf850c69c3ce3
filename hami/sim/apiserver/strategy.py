"""What a kind does to an object on its way into storage: defaults, what a write may touch, validation."""

from __future__ import annotations

from typing import Final

from hami.sim import errors, quantity
from hami.sim.apiserver import names, pods
from hami.sim.apiserver.kinds import EVENTS, LEASES, MUTATING, NAMESPACES, NODES, PODS, QUOTAS, Kind
from hami.sim.errors import FieldFault
from hami.sim.objects import Obj, dig

_SERVER_OWNED: Final = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink")
_GO_TYPES: Final = {bool: "bool", int: "number", float: "number", list: "array", dict: "object"}


def _cannot_handle(kind: Kind, why: str) -> errors.StatusError:
    return errors.bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


def check_shape(kind: Kind, obj: Obj) -> None:
    """What Go's decoder would refuse: labels and annotations are maps of text. Raises StatusError 400."""
    meta = obj.setdefault("metadata", {})
    for part in ("annotations", "labels"):
        for value in (meta.get(part) or {}).values():
            if not isinstance(value, str):
                found = _GO_TYPES.get(type(value), "null")
                where = f"Go struct field ObjectMeta.metadata.{part} of type string"
                raise _cannot_handle(kind, f"json: cannot unmarshal {found} into {where}")


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
                webhook.setdefault(key, value)


_WEBHOOK_DEFAULTS: Final[Obj] = {
    "failurePolicy": "Fail",
    "matchPolicy": "Equivalent",
    "timeoutSeconds": 10,
    "reinvocationPolicy": "Never",
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
    _raise(kind, name, faults)


def validate_update(kind: Kind, subresource: str, obj: Obj, old: Obj) -> None:
    """Raises StatusError 422."""
    faults: list[FieldFault] = []
    if kind is PODS and not subresource:
        faults = pods.validate_update(obj, old)
    elif kind is LEASES and dig(obj, "spec", "leaseDurationSeconds", default=1) <= 0:
        value = obj["spec"]["leaseDurationSeconds"]
        faults = [FieldFault.invalid("spec.leaseDurationSeconds", value, "must be greater than 0")]
    _raise(kind, obj["metadata"]["name"], faults)


def _raise(kind: Kind, name: str, faults: list[FieldFault]) -> None:
    if faults:
        raise errors.invalid(kind.group, kind.kind, name, faults)
