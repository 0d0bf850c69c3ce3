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
TYPES: Final[dict[str, dict[str, Any]]] = {
    "string": {"type": "string"},
    "boolean": {"type": "boolean"},
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "list": {"type": "array"},
    "map": {"type": "object"},
    "texts": {"type": "object", "additionalProperties": {"type": "string"}},
    "any": {},
    "switch": {"enum": [True, False, "true", "false"]},
    "resource": {"type": "string", "pattern": RESOURCE},
    "duration": {"type": "string", "pattern": DURATION},
}


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
    elif bounded := re.fullmatch(r"(integer|number)(>=?)(\d+)", word):
        bound = "minimum" if bounded[2] == ">=" else "exclusiveMinimum"
        found = {"type": bounded[1], bound: int(bounded[3])}
    else:
        found = dict(TYPES[word])
    if kind.endswith("?") and "type" in found:
        found["type"] = [found["type"], "null"]
    return {**found, "description": meaning}


def schema() -> dict[str, Any]:
    """values.schema.json. Unknown keys pass: the notes name them (contract 3.7)."""
    root: dict[str, Any] = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of the chart hami",
        "type": "object",
        "properties": {},
    }
    for path, (kind, meaning) in leaves().items():
        *parents, last = path.split(".")
        place = root
        for parent in parents:
            place = place["properties"].setdefault(parent, {"type": "object", "properties": {}})
        place["properties"][last] = rule(kind, meaning)
    return root


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
