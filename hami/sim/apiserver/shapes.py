"""What Go's decoder refuses before anything else looks at an object: a field of another JSON type than its Go type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from hami.core.errors import HamiError
from hami.sim.objects import Obj

_GO_TYPES: Final = {str: "string", bool: "bool", int: "number", float: "number", list: "array", dict: "object"}


class ShapeError(HamiError):
    """In the decoder's words."""


def check_metadata(kind: str, obj: Obj) -> None:
    """Metadata is an object, labels and annotations are maps of text. Raises ShapeError."""
    if obj.get("metadata") is None:
        obj["metadata"] = {}
    meta = obj["metadata"]
    if not isinstance(meta, dict):
        raise _fault(meta, "metadata", kind, "v1.ObjectMeta")
    for part in ("annotations", "labels"):
        _expect(meta, part, dict, "metadata", "ObjectMeta", "map[string]string")
        for value in (meta.get(part) or {}).values():
            if not isinstance(value, str):
                raise _fault(value, f"metadata.{part}", "ObjectMeta", "string")


def check_pod(pod: Obj) -> None:
    """Those fields of a pod that the server itself reads; null among containers is an empty one. Raises ShapeError."""
    _expect(pod, "spec", dict, "", "Pod", "v1.PodSpec")
    for container in _containers(pod.get("spec") or {}):
        where = "spec.containers"
        for key in ("name", "image"):
            _expect(container, key, str, where, "Container", "string")
        _expect(container, "resources", dict, where, "Container", "v1.ResourceRequirements")
        resources = container.get("resources") or {}
        for part in ("limits", "requests"):
            _expect(resources, part, dict, f"{where}.resources", "ResourceRequirements", "v1.ResourceList")


def _containers(spec: Obj) -> Iterator[Obj]:
    for part in ("initContainers", "containers"):
        _expect(spec, part, list, "spec", "PodSpec", "[]v1.Container")
        listed = spec.get(part) or []
        for at, container in enumerate(listed):
            if not isinstance(container, dict | None):
                raise _fault(container, f"spec.{part}", "PodSpec", "v1.Container")
            if container is None:
                listed[at] = {}
        yield from listed


def _expect(holder: Obj, key: str, kind: type, path: str, struct: str, go_type: str) -> None:
    value = holder.get(key)
    if value is not None and not isinstance(value, kind):
        raise _fault(value, f"{path}.{key}" if path else key, struct, go_type)


def _fault(value: Any, path: str, struct: str, go_type: str) -> ShapeError:
    found = _GO_TYPES.get(type(value), "null")
    return ShapeError(f"json: cannot unmarshal {found} into Go struct field {struct}.{path} of type {go_type}")
