"""`make chart`: generates what is derived from the chart's sources; `--check` says what is out of date instead.

From charts/hami/values.schema.yaml: values.schema.json (helm checks values by it) and files/values.json (the notes
after an install name keys without effect and unknown keys by it). By helm: manifests/, for `kubectl apply -k`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import yaml

from scripts import helm_tool

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = ROOT / "charts" / "hami"
MANIFESTS: Final = ROOT / "manifests"
NAMESPACE: Final = "hami-system"
KUBE_VERSION: Final = "v1.34.4"
"""Version of the kube-scheduler in manifests/; `kubectl kustomize` knows no cluster."""
OVERLAYS: Final = {
    "base": ("the scheduler makes its own certificate", ()),
    "cert-manager": ("cert-manager makes the certificate", ("scheduler.certManager.enabled=true",)),
    "own-certificate": (
        "your Secret hami-scheduler-tls; then `hami certs patch`",
        ("scheduler.patch.enabled=false",),
    ),
    "simulated": ("simulated A100 cards on every node", ("devicePlugin.simulate=a100",)),
}
GENERATED: Final = "# Generated from charts/hami by `make chart`; edit that.\n"
NO_EFFECT: Final = "NONE"
RESOURCE: Final = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
DURATION: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
NAME: Final = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
"""Of objects. Kubernetes refuses others, and a template that got a colon or a quote would fail with a line number."""
PORT: Final[dict[str, Any]] = {"type": "integer", "minimum": 1, "maximum": 65535}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _text(pattern: str, longest: int = 0) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern} | ({"maxLength": longest} if longest else {})


def _words(*known: str) -> dict[str, Any]:
    """Some of the known words, between commas."""
    word = f"({'|'.join(known)})"
    return _text(rf"^{word}([ ,]+{word})*$")


TYPES: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "map": {"type": "object"},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {},
    "switch": {"enum": [True, False, "true", "false"]},
    "resource": _text(RESOURCE),
    "duration": _text(DURATION),
    "alerttime": _text(r"^(0|([0-9]+(ms|s|m|h|d|w))+)$"),
    "name": _text(rf"^({NAME})?$", 253),
    "name+": _text(rf"^{NAME}$", 63),
    "label": _text(r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", 63),
    "rate": {
        "anyOf": [
            {"type": "number", "minimum": 1, "maximum": 10000},
            _text(r"^([0-9]+(\.[0-9]+)?)?$"),
            {"type": "null"},
        ]
    },
    "seconds": {
        "anyOf": [{"type": "number", "minimum": 0, "maximum": 600}, _text(r"^([0-9]+(\.[0-9]+)?)?$"), {"type": "null"}]
    },
    "wait": {"anyOf": [_text(rf"^(0|({DURATION[1:-1]})?)$"), {"type": "null"}]},
    "share": {"anyOf": [{"type": "integer", "minimum": 0}, _text(r"^[0-9]+%$"), {"type": "null"}]},
    "names": _list(_text(rf"^{NAME}$", 63)),
    "labels": {
        "type": "object",
        "additionalProperties": _text(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", 63),
    },
    "registry": _text(r"^([A-Za-z0-9\[][A-Za-z0-9._:/\[\]-]*)?$"),
    "repository": _text(r"^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$"),
    "tag": _text(r"^([A-Za-z0-9_][A-Za-z0-9_.-]*(@sha256:[0-9a-f]{64})?)?$"),
    "folder": _text(r"^/[A-Za-z0-9._/@+~-]*$"),
    "driver": _text(r"^(|auto|/[A-Za-z0-9._/@+~-]*)$"),
    "listener": _text(r"^[A-Za-z0-9.:/\[\]-]+$"),
    "port": PORT,
    "host": _text(r"^[A-Za-z0-9.:\[\]-]*$"),
    "urlpath": _text(r"^(/[A-Za-z0-9._~/%-]*)?$"),
    "word": _text(r"^[A-Za-z0-9_.-]*$"),
    "policies": _words("binpack", "mutex", "numa", "spread", "topology-aware"),
    "strategies": _words("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"),
    "level": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 100}, _text(r"^[0-9]*$")]},
    "maps": _list({"type": "object"}),
    "arguments": _list({"type": ["string", "number", "boolean"]}),
    "users": _list(_text(r"^[^'\s]+$")),
    "secrets": _list(
        {
            "anyOf": [
                _text(rf"^{NAME}$"),
                {"type": "object", "required": ["name"], "properties": {"name": _text(rf"^{NAME}$")}},
            ]
        }
    ),
    "variables": {
        "anyOf": [
            _list(
                {
                    "type": "object",
                    "required": ["name"],
                    "properties": {key: {"type": "string"} for key in ("name", "value")},
                }
            ),
            {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
        ]
    },
    "selector": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"matchLabels": {"type": "object"}, "matchExpressions": _list({"type": "object"})},
            },
            {"type": "array", "maxItems": 0},
        ]
    },
}
OPTIONAL_WHEN_EMPTY: Final[tuple[Any, ...]] = ("", None, False, [], {})
"""Defaults that a key without a value means too."""
MAY_BE_NOTHING: Final = ("name", "label", "registry", "texts", "labels", "arguments", "maps", "map", "any", "string")
"""Types of which nothing is a value, whatever the default: `priorityClassName:` is no priority class."""


def leaves() -> dict[str, tuple[str, str]]:
    """Every key of the source: its type and its meaning."""
    text = (CHART / "values.schema.yaml").read_text()
    return {path: _split(path, leaf) for path, leaf in yaml.safe_load(text).items()}


def _split(path: str, leaf: str) -> tuple[str, str]:
    kind, equals, meaning = leaf.partition(" = ")
    if not equals:
        raise SystemExit(f"values.schema.yaml: {path}: expected `type = meaning`, found {leaf!r}")
    return kind, meaning


def rule(kind: str, meaning: str) -> dict[str, Any]:
    """JSON Schema of one leaf."""
    word = kind.removeprefix("optional ").removesuffix("?")
    found: dict[str, Any]
    if word == NO_EFFECT:
        found = {}
        meaning = f"No effect: {meaning}."
    elif choice := re.fullmatch(r"\[(.+)\]", word):
        found = {"enum": choice[1].split("|")}
    elif bounded := re.fullmatch(r"(integer|number)(>=?)(\d+)(?:<=(\d+))?", word):
        bound = "minimum" if bounded[2] == ">=" else "exclusiveMinimum"
        found = {"type": bounded[1], bound: int(bounded[3])} | ({"maximum": int(bounded[4])} if bounded[4] else {})
    else:
        found = dict(TYPES[word])
    if kind.endswith("?") and "type" in found:
        found["type"] = [found["type"], "null"]
    return {**found, "description": meaning}


def schema() -> dict[str, Any]:
    """values.schema.json. Unknown keys pass: the notes name them (contract 3.7).

    A key without a value (`scheduler:` and nothing under it) takes the chart's default away: what the templates cannot
    do without is required, so that helm names it.
    """
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart hami",
        "type": "object",
        "properties": {},
    }
    for path, (kind, meaning) in leaves().items():
        *parents, last = path.split(".")
        place = root
        needed = kind != NO_EFFECT and not kind.startswith("optional ")
        for parent in parents:
            if needed:
                _require(place, parent)
            place = place["properties"].setdefault(parent, {"type": "object", "properties": {}})
        if needed and _has_no_nothing(kind, default(path)):
            _require(place, last)
        place["properties"][last] = rule(kind, meaning)
    return root


def _require(place: dict[str, Any], key: str) -> None:
    required = place.setdefault("required", [])
    if key not in required:
        required.append(key)


def _has_no_nothing(kind: str, value: Any) -> bool:
    return not kind.endswith("?") and kind not in MAY_BE_NOTHING and value not in OPTIONAL_WHEN_EMPTY


def default(path: str) -> Any:
    """What values.yaml has at that path; None where it has nothing."""
    place: Any = yaml.safe_load((CHART / "values.yaml").read_text())
    for key in path.split("."):
        place = place.get(key) if isinstance(place, dict) else None
    return place


def known_values() -> dict[str, Any]:
    """What the notes need: keys without effect with the reason, and the tree of keys that mean something."""
    tree: dict[str, Any] = {}
    no_effect: dict[str, str] = {}
    for path, (kind, meaning) in leaves().items():
        if kind == NO_EFFECT:
            no_effect[path] = meaning
        *parents, last = path.split(".")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = True
    return {"noEffect": no_effect, "known": tree}


def manifests() -> dict[Path, str]:
    """The chart rendered for people without helm: one folder a way of installing."""
    files: dict[Path, str] = {}
    for name, (what, settings) in OVERLAYS.items():
        command = [str(helm_tool.program()), "template", "hami", str(CHART), "--namespace", NAMESPACE]
        command += ["--kube-version", KUBE_VERSION, "--skip-tests"]
        command += [f"--set={setting}" for setting in (*settings, f"namespaceOverride={NAMESPACE}")]
        rendered = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1",
            "kind": "Kustomization",
            "resources": ["namespace.yaml", "hami.yaml"],
        }
        files[MANIFESTS / name / "kustomization.yaml"] = f"# {what}\n" + yaml.safe_dump(kustomization, sort_keys=False)
        files[MANIFESTS / name / "namespace.yaml"] = GENERATED + yaml.safe_dump(_namespace(), sort_keys=False)
        files[MANIFESTS / name / "hami.yaml"] = GENERATED + rendered
    return files


def _namespace() -> dict[str, Any]:
    """The plugin mounts host folders, which Pod Security calls privileged."""
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def outputs(*, with_manifests: bool) -> dict[Path, str]:
    """Every generated file and its text."""
    return {
        CHART / "values.schema.json": json.dumps(schema(), indent=2) + "\n",
        CHART / "files" / "values.json": json.dumps(known_values(), indent=1) + "\n",
        **(manifests() if with_manifests else {}),
    }


def main(arguments: list[str]) -> int:
    why = helm_tool.missing()
    if why:
        print(f"manifests/ left as it is: {why}")
    if "--check" not in arguments:
        # helm checks the values that the manifests are rendered with by the new schema.
        _write_stale(outputs(with_manifests=False), arguments)
    return _write_stale(outputs(with_manifests=not why), arguments)


def _write_stale(texts: dict[Path, str], arguments: list[str]) -> int:
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: run make chart")
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path])
        print(f"wrote {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
