"""Renders the chart with helm and finds objects in what comes out."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from scripts import helm_tool

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "charts" / "hami"
UPSTREAM_VALUES: Final = Path(__file__).with_name("upstream-values.yaml")
CI_VALUES: Final = sorted((CHART / "ci").glob("*-values.yaml"))
KUBE_VERSION: Final = "v1.34.4"

Object = dict[str, Any]


class RenderError(Exception):
    """helm refused; the text is what a person sees."""


def helm() -> Path:
    """helm, or a printed skip where it cannot be had; a failure where CI=true."""
    if why := helm_tool.missing():
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(why)
        pytest.skip(why)
    return helm_tool.program()


def _run(*arguments: str) -> str:
    done = subprocess.run([str(helm()), *arguments], capture_output=True, text=True, check=False, timeout=240)
    if done.returncode:
        raise RenderError(done.stderr)
    return done.stdout


def render_text(
    values: Mapping[str, Any] | None = None,
    *files: Path,
    release: str = "hami",
    namespace: str = "kube-system",
    kube_version: str = KUBE_VERSION,
    apis: tuple[str, ...] = (),
) -> str:
    """What `helm template` prints. Raises RenderError."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as own:
        yaml.safe_dump(dict(values or {}), own)
        own.flush()
        arguments = ["template", release, str(CHART), "--namespace", namespace, "--kube-version", kube_version]
        arguments += [f"--values={path}" for path in (*files, own.name)] + [f"--api-versions={api}" for api in apis]
        return _run(*arguments)


def render(values: Mapping[str, Any] | None = None, *files: Path, **options: Any) -> list[Object]:
    """The objects. Raises RenderError."""
    text = render_text(values, *files, **options)
    # By libyaml: the other loader takes longer than helm.
    return [each for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each]


def notes(values: Mapping[str, Any] | None = None, *files: Path) -> str:
    """NOTES.txt as `helm install` prints it, without a cluster."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as own:
        yaml.safe_dump(dict(values or {}), own)
        own.flush()
        arguments = ["install", "hami", str(CHART), "--dry-run=client", "--namespace", "kube-system"]
        text = _run(*arguments, *(f"--values={path}" for path in (*files, own.name)))
    return text.partition("\nNOTES:\n")[2]


def one(objects: list[Object], kind: str, name: str = "") -> Object:
    """The only object of that kind (and name)."""
    found = [each for each in objects if each["kind"] == kind and name in ("", each["metadata"]["name"])]
    assert len(found) == 1, f"{kind} {name}: {[each['metadata']['name'] for each in found]}"
    return found[0]


def pod_spec(objects: list[Object], kind: str) -> Object:
    spec: Object = one(objects, kind)["spec"]["template"]["spec"]
    return spec


def container(objects: list[Object], kind: str, name: str) -> Object:
    found = [each for each in all_containers(pod_spec(objects, kind)) if each["name"] == name]
    assert len(found) == 1, name
    return found[0]


def all_containers(spec: Object) -> Iterator[Object]:
    yield from spec.get("initContainers", [])
    yield from spec["containers"]


def images(objects: list[Object]) -> set[str]:
    """Every image of every workload."""
    workloads = [each for each in objects if each["kind"] in ("Deployment", "DaemonSet", "Job", "Pod")]
    specs = [each["spec"]["template"]["spec"] if "template" in each["spec"] else each["spec"] for each in workloads]
    return {each["image"] for spec in specs for each in all_containers(spec)}
