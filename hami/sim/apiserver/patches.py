"""The three patch forms: JSON merge patch (RFC 7386), JSON patch (RFC 6902), strategic merge for the lists we use."""

from __future__ import annotations

from typing import Any, Final

from hami.core.errors import HamiError
from hami.sim import errors
from hami.sim.objects import clone

_MERGE_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "conditions": "type",
    "addresses": "type",
    "ownerReferences": "uid",
    "imagePullSecrets": "name",
    "podIPs": "ip",
    "hostIPs": "ip",
    "secrets": "name",
    "webhooks": "name",
}
"""Lists with patchStrategy=merge and their patchMergeKey in k8s.io/api; every other list is replaced whole."""

_PRIMITIVE_SETS: Final = frozenset({"finalizers"})


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def strategic_merge(target: Any, patch: Any) -> Any:
    """Merge patch with lists merged by key, `$patch: delete|replace` and `$deleteFromPrimitiveList`."""
    if not isinstance(patch, dict):
        return clone(patch)
    if patch.get("$patch") == "replace":
        return clone({key: value for key, value in patch.items() if key != "$patch"})
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            result.pop(key, None)
        elif isinstance(value, list):
            result[key] = _merge_list(key, result.get(key) or [], value)
        else:
            result[key] = strategic_merge(result.get(key), value)
    return result


def _merge_list(name: str, old: list[Any], patch: list[Any]) -> list[Any]:
    if name in _PRIMITIVE_SETS:
        return list(dict.fromkeys([*old, *patch]))
    key = _MERGE_KEYS.get(name)
    if key is None or any(not isinstance(item, dict) for item in patch):
        return list(clone(patch))
    if any(item.get("$patch") == "replace" for item in patch):
        return [clone(item) for item in patch if "$patch" not in item]
    result = list(old)
    for item in patch:
        position = next((i for i, have in enumerate(result) if have.get(key) == item.get(key)), None)
        if item.get("$patch") == "delete":
            if position is not None:
                del result[position]
        elif position is None:
            result.append(strategic_merge({}, item))
        else:
            result[position] = strategic_merge(result[position], item)
    return result


class _PathError(HamiError):
    """A JSON pointer leads nowhere."""


def _steps(pointer: str) -> list[str]:
    if pointer and not pointer.startswith("/"):
        raise _PathError(f"pointer {pointer!r} does not begin with a slash")
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _index(step: str, last: int) -> int:
    if step == "-":
        return last
    if not step.isdigit() or int(step) > last:
        raise _PathError(f"index {step!r} is out of range")
    return int(step)


def _child(container: Any, step: str) -> Any:
    if isinstance(container, list):
        return container[_index(step, len(container) - 1)]
    if not isinstance(container, dict) or step not in container:
        raise _PathError(f"missing path step {step!r}")
    return container[step]


def _lookup(document: Any, steps: list[str]) -> Any:
    for step in steps:
        document = _child(document, step)
    return document


def _add(document: Any, steps: list[str], value: Any) -> Any:
    if not steps:
        return value
    parent, step = _lookup(document, steps[:-1]), steps[-1]
    if isinstance(parent, list):
        parent.insert(_index(step, len(parent)), value)
    elif isinstance(parent, dict):
        parent[step] = value
    else:
        raise _PathError(f"{step!r} has no object or list to go into")
    return document


def _remove(document: Any, steps: list[str]) -> Any:
    if not steps:
        raise _PathError("the whole document cannot be removed")
    parent, step = _lookup(document, steps[:-1]), steps[-1]
    value = _child(parent, step)
    if isinstance(parent, list):
        del parent[_index(step, len(parent) - 1)]
    else:
        del parent[step]
    return value


def _apply(document: Any, operation: dict[str, Any]) -> Any:
    name, steps = operation.get("op"), _steps(operation.get("path", ""))
    if name == "test":
        if _lookup(document, steps) != operation.get("value"):
            raise _PathError(f"testing value {operation.get('path')} failed")
        return document
    if name == "remove":
        _remove(document, steps)
        return document
    if name in ("move", "copy"):
        source = _steps(operation.get("from", ""))
        value = _remove(document, source) if name == "move" else clone(_lookup(document, source))
        return _add(document, steps, value)
    if name == "replace":
        _lookup(document, steps)
        if steps:
            parent = _lookup(document, steps[:-1])
            parent[_index(steps[-1], len(parent) - 1) if isinstance(parent, list) else steps[-1]] = clone(
                operation.get("value")
            )
            return document
    elif name != "add":
        raise _PathError(f"unexpected kind: {name}")
    return _add(document, steps, clone(operation.get("value")))


def json_patch(target: Any, operations: Any) -> Any:
    """RFC 6902 on a copy; all or nothing. Raises StatusError 422 where an operation cannot be applied."""
    document = clone(target)
    if not isinstance(operations, list):
        raise errors.bad_request("error decoding patch: a JSON patch is a list")
    for operation in operations:
        try:
            document = _apply(document, operation)
        except (_PathError, IndexError, AttributeError) as error:
            raise errors.unprocessable(f"{operation.get('op')} operation does not apply: {error}") from error
    return document
