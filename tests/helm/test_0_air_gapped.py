"""Images for clusters without the internet: saved, loaded, pushed to a private registry, and named by the chart."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from scripts.buildah import Buildah, provide
from tests.chart.rendering import images, render
from tests.cluster import build
from tests.helm.cluster import ROOT
from tests.helm.registry import Registry

SCRIPT = ROOT / "docker" / "mirror-images.sh"
KUBE_SCHEDULER = "registry.k8s.io/kube-scheduler"


def mirror(
    *arguments: str, check: bool = True, tool: str = "none", flags: str = ""
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"TOOL": tool, "FLAGS": flags}
    return subprocess.run(["sh", str(SCRIPT), *arguments], capture_output=True, text=True, check=check, env=environment)


def test_images_reach_a_private_registry_and_the_chart_asks_for_them_there(tmp_path: Path) -> None:
    provide()
    store = Buildah()
    version = f"v{build.expected().kubernetes_version}"
    store.run("tag", f"localhost/kube-scheduler:{version}", f"{KUBE_SCHEDULER}:{version}")
    tool, flags = " ".join(store.command), f"--signature-policy={store.policy}"
    try:
        with Registry() as registry:
            mirror("save", version, str(tmp_path), tool=tool, flags=flags)
            target = f"{registry.address}/mirror"
            mirror("push", version, str(tmp_path), target, tool=tool, flags=f"{flags} --tls-verify=false")
            listed = mirror("list", version, f"{registry.address}/mirror").stdout.split()
            assert {f"{registry.address}/{name}" for name in registry.manifests} == set(listed)
            values = {"global": {"imageRegistry": f"{registry.address}/mirror"}}
            assert images(render(values, kube_version=version)) == set(listed)
            for manifest in registry.manifests.values():
                assert {layer["digest"] for layer in json.loads(manifest)["layers"]} <= set(registry.blobs)
            for name in listed:
                store.run("rmi", name)
    finally:
        store.run("rmi", f"{KUBE_SCHEDULER}:{version}")


def test_a_missing_archive_is_named(tmp_path: Path) -> None:
    done = mirror("push", "v1.34.4", str(tmp_path), "registry.example", check=False)
    assert done.returncode == 1
    assert f"{tmp_path}/hami-scheduler-0.1.0.tar is missing: run save first" in done.stderr


@pytest.mark.parametrize("version", ["1.34.4", "v1.34", "latest"])
def test_a_version_that_is_none_is_refused(version: str) -> None:
    done = mirror("list", version, check=False)
    assert done.returncode == 2
    assert f"KUBERNETES_VERSION is '{version}': expected one as v1.34.4" in done.stderr
