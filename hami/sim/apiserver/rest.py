"""The verbs on objects: create, get, update, patch, delete, and the subresources status and binding.

Between HTTP (server.py) and storage (store.py); the order of steps is registry/generic/registry/store.go's: decode,
default, admit, default again, prepare, validate, compare and swap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hami.sim import errors
from hami.sim.apiserver import binding, deletion, events, names, strategy
from hami.sim.apiserver.admission import Admission, Attributes
from hami.sim.apiserver.deletion import DeleteOptions
from hami.sim.apiserver.kinds import ALL, NAMESPACES, NEW_EVENTS, PODS, Kind, Target
from hami.sim.apiserver.patches import json_patch, merge_patch, strategic_merge
from hami.sim.apiserver.pods import add_tolerations
from hami.sim.apiserver.store import Store, Stored
from hami.sim.objects import Obj, clone, dig

PATCHES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "application/json-patch+json": json_patch,
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_merge,
}
_PATCH_RETRIES: Final = 5


@dataclass(slots=True)
class Outcome:
    """What a write answers: HTTP code, object of `kind` (or a Status as `body`), warnings of webhooks."""

    code: int
    kind: Kind | None = None
    obj: Obj = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def _untyped(obj: Obj) -> Obj:
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


class Rest:
    """Object verbs over a store, with admission on the way in."""

    def __init__(self, store: Store, admission: Admission) -> None:
        self.store = store
        self._admission = admission

    def decode(self, kind: Kind, body: Any) -> Obj:
        """A body as an object of the kind. Raises StatusError 400 where it is something else."""
        if not isinstance(body, dict):
            raise errors.bad_request("the object provided is unrecognized (must be of type " + kind.kind + ")")
        given = (body.get("apiVersion") or kind.api_version, body.get("kind") or kind.kind)
        if given != (kind.api_version, kind.kind):
            raise errors.bad_request(
                f'{given[1]} in version "{given[0].rpartition("/")[2]}" cannot be handled as a {kind.kind}: '
                f"unknown conversion"
            )
        obj = _untyped(body)
        if kind is NEW_EVENTS:
            obj = events.to_core(obj)
        strategy.check_shape(kind, obj)
        return obj

    async def create(self, target: Target, body: Any, dry_run: bool = False) -> Outcome:
        """POST on a collection, or on pods/{name}/binding. Raises StatusError."""
        if target.subresource:
            return self._create_subresource(target, body)
        kind, obj = target.kind, self.decode(target.kind, body)
        meta = obj["metadata"]
        self._fill_identity(target, meta)
        self._check_namespace(target)
        strategy.set_defaults(kind, obj)
        strategy.prepare_create(kind, obj)
        if kind is PODS:
            add_tolerations(obj)
        attributes = Attributes("CREATE", target, meta["name"], obj, None, _options("CreateOptions"), dry_run)
        admitted, warnings = await self._admission.mutate(attributes)
        obj = admitted or obj
        strategy.set_defaults(kind, obj)
        strategy.prepare_create(kind, obj)
        strategy.validate_create(kind, obj)
        if dry_run:
            return Outcome(201, kind, obj, warnings)
        stored = self.store.create(kind, obj)
        return Outcome(201, kind, stored.obj, warnings)

    def _create_subresource(self, target: Target, body: Any) -> Outcome:
        if target.kind is not PODS or target.subresource != "binding" or not isinstance(body, dict):
            raise errors.unknown_path()
        given = dig(body, "metadata", "namespace", default=target.namespace)
        if given != target.namespace:
            asked = f"the namespace on the request ({target.namespace})"
            raise errors.bad_request(f"the namespace of the object ({given}) does not match {asked}")
        return Outcome(201, None, binding.bind(self.store, target.namespace, target.name, body))

    def _fill_identity(self, target: Target, meta: Obj) -> None:
        kind = target.kind
        if kind.namespaced:
            given = meta.get("namespace") or target.namespace
            if given != target.namespace:
                text = "the namespace of the provided object does not match the namespace sent on the request"
                raise errors.bad_request(text)
            if not target.namespace:
                raise errors.bad_request("an empty namespace may not be set during creation")
            meta["namespace"] = target.namespace
        else:
            meta.pop("namespace", None)
        if meta.get("generateName") and not meta.get("name"):
            meta["name"] = names.generate(meta["generateName"])
        if not meta.get("name"):
            fault = errors.FieldFault.required("metadata.name", "name or generateName is required")
            raise errors.invalid(kind.group, kind.kind, "", [fault])

    def _check_namespace(self, target: Target) -> None:
        if not target.kind.namespaced:
            return
        namespace = self.store.get(NAMESPACES, "", target.namespace).obj
        if dig(namespace, "status", "phase") == "Terminating":
            why = f"unable to create new content in namespace {target.namespace} because it is being terminated"
            raise errors.forbidden(target.kind.group, target.kind.plural, target.name, why)

    async def update(self, target: Target, body: Any, dry_run: bool = False) -> Outcome:
        """PUT of an object or its status. Raises StatusError."""
        kind, obj = target.kind, self.decode(target.kind, body)
        meta = obj["metadata"]
        if meta.get("name") != target.name:
            raise errors.bad_request(
                f"the name of the object ({meta.get('name', '')}) does not match the name on the URL ({target.name})"
            )
        if self.store.find(kind, target.namespace, target.name) is None and kind.create_on_update:
            return await self.create(Target(kind, target.namespace), body, dry_run)
        current = self.store.get(kind, target.namespace, target.name)
        have = current.obj["metadata"]
        if meta.get("uid") and meta["uid"] != have["uid"]:
            raise errors.precondition(kind.group, kind.plural, have, "UID", meta["uid"], have["uid"])
        self._check_version(kind, current, meta)
        return await self._write(target, current, obj, "UpdateOptions", dry_run)

    def _check_version(self, kind: Kind, current: Stored, meta: Obj) -> None:
        have, wanted = current.obj["metadata"], meta.get("resourceVersion")
        if wanted and wanted != have["resourceVersion"]:
            raise errors.conflict(kind.group, kind.plural, have["name"], errors.MODIFIED)
        if not wanted and not kind.unconditional_update:
            text = "must be specified for an update"
            fault = errors.FieldFault.invalid("metadata.resourceVersion", "0x0", text)
            raise errors.invalid(kind.group, kind.kind, have["name"], [fault])

    async def patch(self, target: Target, body: Any, content_type: str, dry_run: bool = False) -> Outcome:
        """PATCH of an object or its status.

        Without a resourceVersion in the patch a lost race is tried again, as the real server does. Raises StatusError.
        """
        apply = PATCHES.get(content_type)
        if apply is None:
            raise errors.unsupported_media_type(content_type)
        kind = target.kind
        for attempt in range(_PATCH_RETRIES + 1):
            current = self.store.get(kind, target.namespace, target.name)
            typed = {"kind": kind.kind, "apiVersion": kind.api_version, **self._shown(kind, current.obj)}
            obj = self.decode(kind, apply(typed, body))
            meta = obj["metadata"]
            self._check_identity(target, meta, current.obj["metadata"])
            self._check_version(kind, current, meta)
            raced = attempt < _PATCH_RETRIES and not _names_version(body)
            try:
                return await self._write(target, current, obj, "PatchOptions", dry_run)
            except errors.StatusError as error:
                if not raced or error.reason != "Conflict":
                    raise
        raise errors.conflict(kind.group, kind.plural, target.name, errors.MODIFIED)

    def _check_identity(self, target: Target, meta: Obj, have: Obj) -> None:
        kind = target.kind
        if meta.get("name") != target.name:
            raise errors.bad_request(
                f"the name of the object ({meta.get('name', '')}) does not match the name on the URL ({target.name})"
            )
        if meta.get("uid", have["uid"]) != have["uid"]:
            fault = errors.FieldFault.invalid("metadata.uid", meta["uid"], "field is immutable")
            raise errors.invalid(kind.group, kind.kind, target.name, [fault])

    def _shown(self, kind: Kind, obj: Obj) -> Obj:
        return events.to_new(obj) if kind is NEW_EVENTS else obj

    async def _write(self, target: Target, current: Stored, obj: Obj, options: str, dry_run: bool) -> Outcome:
        kind = target.kind
        if target.subresource not in ("", "status") or (target.subresource and not kind.status):
            raise errors.unknown_path()
        old = current.obj
        obj = strategy.prepare_update(kind, target.subresource, clone(obj), old)
        strategy.set_defaults(kind, obj)
        attributes = Attributes("UPDATE", target, target.name, obj, old, _options(options), dry_run)
        admitted, warnings = await self._admission.mutate(attributes)
        obj = strategy.prepare_update(kind, target.subresource, admitted or obj, old)
        strategy.set_defaults(kind, obj)
        strategy.validate_update(kind, target.subresource, obj, old)
        if dry_run:
            return Outcome(200, kind, obj, warnings)
        stored = self.store.update(kind, current, obj)
        if deletion.finished(stored.obj):
            stored = self.store.delete(kind, stored)
        return Outcome(200, kind, stored.obj, warnings)

    async def delete(self, target: Target, options: DeleteOptions, dry_run: bool = False) -> Outcome:
        """DELETE of one object. Raises StatusError 404, 409, or what a webhook says."""
        kind = target.kind
        if target.subresource:
            raise errors.method_not_allowed()
        current = self.store.get(kind, target.namespace, target.name)
        deletion.check_preconditions(kind, current.obj, options)
        attributes = Attributes("DELETE", target, target.name, None, current.obj, _options("DeleteOptions"), dry_run)
        await self._admission.mutate(attributes)
        current = self.store.get(kind, target.namespace, target.name)
        deletion.check_preconditions(kind, current.obj, options)
        if dry_run:
            return Outcome(200, kind, current.obj)
        marked, stays = deletion.decide(kind, current.obj, options)
        current = self.store.update(kind, current, marked)
        if stays:
            return Outcome(200, kind, current.obj)
        if kind is NAMESPACES:
            self._empty_namespace(target.name)
        gone = self.store.delete(kind, current)
        if kind is PODS or kind is NAMESPACES:
            return Outcome(200, kind, gone.obj)
        details = {"name": target.name, "kind": kind.plural, "uid": gone.obj["metadata"]["uid"]}
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        return Outcome(200, None, status)

    def _empty_namespace(self, name: str) -> None:
        """What the namespace controller does, at once and without grace: nobody else would."""
        for kind in ALL:
            if kind.namespaced and kind is not NEW_EVENTS:
                for stored in self.store.items(kind, name):
                    self.store.delete(kind, stored)


def _options(kind: str) -> Obj:
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1"}


def _names_version(patch: Any) -> bool:
    return isinstance(patch, dict) and bool(dig(patch, "metadata", "resourceVersion"))
