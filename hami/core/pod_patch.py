"""Minimal RFC 6902 patches of a pod: only paths that really change, and none where the pod is as wanted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from hami.core.objects import Container, Pod


class PatchOp(msgspec.Struct, frozen=True):
    """One operation; `value` has no meaning for `remove`."""

    op: str
    path: str
    value: object = None


def spec_field(field: str, current: str | None, wanted: str) -> tuple[PatchOp, ...]:
    """Sets a text field of the pod's spec."""
    if current == wanted:
        return ()
    return (PatchOp("replace" if current else "add", f"/spec/{field}", wanted),)


def container_paths(pod: Pod) -> tuple[tuple[str, Container], ...]:
    """Path and container in annotation order, init containers first."""
    inits = ((f"/spec/initContainers/{at}", each) for at, each in enumerate(pod.spec.init_containers or ()))
    apps = ((f"/spec/containers/{at}", each) for at, each in enumerate(pod.spec.containers or ()))
    return (*inits, *apps)


def set_resources(path: str, container: Container, wanted: Mapping[str, str]) -> Iterable[PatchOp]:
    """Sets quantities in limits and in requests."""
    resources = container.resources
    if not wanted:
        return
    if resources is None:
        yield PatchOp("add", f"{path}/resources", {"limits": dict(wanted), "requests": dict(wanted)})
        return
    for kind, present in (("limits", resources.limits), ("requests", resources.requests)):
        if present is None:
            yield PatchOp("add", f"{path}/resources/{kind}", dict(wanted))
            continue
        for name, quantity in wanted.items():
            if str(present.get(name)) != quantity:
                yield PatchOp("add", f"{path}/resources/{kind}/{_escaped(name)}", quantity)


def set_env(
    path: str, container: Container, wanted: Sequence[tuple[str, str]], dropped: Sequence[str]
) -> Iterable[PatchOp]:
    """Sets variables and removes others. Of several variables with one name the last counts, so that one is set."""
    present = container.env
    missing: list[dict[str, str]] = []
    for name, value in wanted:
        places = [at for at, variable in enumerate(present or ()) if variable.name == name]
        if not places:
            missing.append({"name": name, "value": value})
        elif present and (present[places[-1]].value != value or present[places[-1]].value_from is not None):
            yield PatchOp("replace", f"{path}/env/{places[-1]}", {"name": name, "value": value})
    if present is None and missing:
        yield PatchOp("add", f"{path}/env", missing)
    elif present is not None:
        yield from (PatchOp("add", f"{path}/env/-", variable) for variable in missing)
    if present and dropped:
        # From the end, so that positions stay true while the patch is applied.
        gone = (at for at in reversed(range(len(present))) if present[at].name in dropped)
        yield from (PatchOp("remove", f"{path}/env/{at}") for at in gone)


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
