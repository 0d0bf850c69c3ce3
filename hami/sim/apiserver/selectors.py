"""Label and field selectors: the query strings of lists and watches, and LabelSelector objects of webhooks."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from hami.sim import errors
from hami.sim.apiserver.kinds import Kind
from hami.sim.objects import Obj, dig
from hami.sim.requirements import holds

Matcher = Callable[[Obj], bool]

_SPLIT: Final = re.compile(r",(?![^(]*\))")
_SET_TERM: Final = re.compile(r"^(\S+)\s+(in|notin)\s+\(([^)]*)\)$")

_FIELDS: Final[dict[str, frozenset[str]]] = {
    "pods": frozenset(
        {
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        }
    ),
    "nodes": frozenset({"spec.unschedulable"}),
    "namespaces": frozenset({"status.phase"}),
    "secrets": frozenset({"type"}),
    "events": frozenset(
        {f"involvedObject.{part}" for part in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion")}
        | {"involvedObject.fieldPath", "reason", "reportingComponent", "source", "type"}
    ),
}
_FALSE_WHEN_MISSING: Final = frozenset({"spec.unschedulable", "spec.hostNetwork"})


def _field_value(obj: Obj, path: str) -> str:
    if path == "source":
        return str(dig(obj, "source", "component", default="") or obj.get("reportingComponent", ""))
    value = dig(obj, *path.split("."), default="")
    if path in _FALSE_WHEN_MISSING:
        return "true" if value is True else "false"
    return str(value)


def field_selector(kind: Kind, text: str) -> Matcher:
    """`metadata.name=x,spec.nodeName!=y`. Raises StatusError 400 on a field that the kind does not index."""
    terms: list[tuple[str, str, bool]] = []
    for term in filter(None, text.split(",")):
        found = re.match(r"^([^=!]+)(!=|==|=)(.*)$", term)
        if not found:
            raise errors.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, operator, value = found.groups()
        path = path.replace("regarding.", "involvedObject.") if kind.group == "events.k8s.io" else path
        known = path in ("metadata.name", "metadata.namespace") or path in _FIELDS.get(kind.plural, frozenset())
        if not known:
            raise errors.bad_request(f"field label not supported: {path}")
        terms.append((path, value, operator != "!="))
    return lambda obj: all((_field_value(obj, path) == value) == equal for path, value, equal in terms)


def _requirement(key: str, operator: str, values: list[str]) -> Matcher:
    return lambda obj: holds(dig(obj, "metadata", "labels", default={}), key, operator, values)


def _label_term(term: str) -> Matcher:
    term = term.strip()
    in_set = _SET_TERM.match(term)
    if in_set:
        values = [value.strip() for value in in_set[3].split(",")]
        return _requirement(in_set[1], "In" if in_set[2] == "in" else "NotIn", values)
    compared = re.match(r"^([^=!\s]+)\s*(!=|==|=)\s*(\S*)$", term)
    if compared:
        return _requirement(compared[1], "NotIn" if compared[2] == "!=" else "In", [compared[3]])
    if re.match(r"^!?[A-Za-z0-9][-A-Za-z0-9_./]*$", term):
        return _requirement(term.lstrip("!"), "DoesNotExist" if term.startswith("!") else "Exists", [])
    raise errors.bad_request(f"unable to parse requirement: found '{term}'")


def label_selector(text: str) -> Matcher:
    """`a=b,c!=d,e in (f,g),!h,i`. Raises StatusError 400 on anything else."""
    matchers = [_label_term(term) for term in _SPLIT.split(text) if term.strip()]
    return lambda obj: all(matcher(obj) for matcher in matchers)


def selector_object(selector: Obj | None) -> Matcher:
    """A LabelSelector (matchLabels, matchExpressions); none or empty matches everything."""
    selector = selector or {}
    matchers = [_requirement(key, "In", [value]) for key, value in (selector.get("matchLabels") or {}).items()]
    matchers += [
        _requirement(term["key"], term["operator"], term.get("values") or [])
        for term in selector.get("matchExpressions") or []
    ]
    return lambda obj: all(matcher(obj) for matcher in matchers)
