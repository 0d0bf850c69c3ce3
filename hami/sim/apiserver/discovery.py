"""Discovery documents: enough for kubectl, kopf and client libraries to find the served kinds."""

from __future__ import annotations

from typing import Final

from hami.sim.apiserver.kinds import ALL, GROUPS, PODS, Kind
from hami.sim.objects import Obj

VERSION: Final[Obj] = {
    "major": "1",
    "minor": "34",
    "gitVersion": "v1.34.4+hami-sim",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def _resources(kind: Kind) -> list[Obj]:
    rows: list[Obj] = [
        {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": _VERBS,
            "shortNames": list(kind.short_names),
        }
    ]
    if kind is PODS:
        rows[0]["categories"] = ["all"]
        rows.append(_sub("pods/binding", "Binding", ["create"], True))
    if kind.status:
        rows.append(_sub(f"{kind.plural}/status", kind.kind, ["get", "patch", "update"], kind.namespaced))
    return rows


def _sub(name: str, kind: str, verbs: list[str], namespaced: bool) -> Obj:
    return {"name": name, "singularName": "", "namespaced": namespaced, "kind": kind, "verbs": verbs}


def _resource_list(group: str) -> Obj:
    kinds = [kind for kind in ALL if kind.group == group]
    rows = [row for kind in kinds for row in _resources(kind)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": kinds[0].api_version, "resources": rows}


def _group(name: str) -> Obj:
    version = {"groupVersion": f"{name}/v1", "version": "v1"}
    return {"name": name, "versions": [version], "preferredVersion": version}


def _openapi_path(kind: Kind) -> str:
    return f"/apis/{kind.group}/v1" if kind.group else "/api/v1"


def _openapi(group: str) -> Obj:
    """No schemas, only what kubectl looks for: that PATCH takes fieldValidation, so it leaves validation to us."""
    paths: Obj = {}
    for kind in ALL:
        if kind.group == group:
            scope = "/namespaces/{namespace}" if kind.namespaced else ""
            patch = {
                "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                "responses": {"200": {"description": "OK"}},
                "x-kubernetes-group-version-kind": {"group": group, "version": kind.version, "kind": kind.kind},
            }
            paths[f"{_openapi_path(kind)}{scope}/{kind.plural}/{{name}}"] = {"patch": patch}
    return {"openapi": "3.0.0", "info": {"title": "hami-sim", "version": "v1"}, "paths": paths}


def documents() -> dict[str, Obj]:
    """Every discovery document by its path."""
    found: dict[str, Obj] = {
        "/version": VERSION,
        "/api": {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []},
        "/api/v1": _resource_list(""),
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in GROUPS]},
    }
    schemas = {(f"apis/{group}/v1" if group else "api/v1"): group for group in ("", *GROUPS)}
    found["/openapi/v3"] = {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in schemas}}
    for path, group in schemas.items():
        found[f"/openapi/v3/{path}"] = _openapi(group)
    for group in GROUPS:
        found[f"/apis/{group}"] = {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}
        found[f"/apis/{group}/v1"] = _resource_list(group)
    return found
