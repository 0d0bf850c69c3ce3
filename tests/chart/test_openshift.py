"""OpenShift and SELinux (report B143): off changes nothing, on gives our accounts what they need and labels folders."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import ROOT, one, render

ON: dict[str, Any] = {"openshift": {"enabled": True}}
SCC = "system:openshift:scc:"


def constraints(values: dict[str, Any]) -> dict[str, str]:
    """Which constraints each account may use."""
    bindings = [each for each in render(values) if each["kind"] == "RoleBinding" and SCC in each["roleRef"]["name"]]
    return {each["subjects"][0]["name"]: each["roleRef"]["name"].removeprefix(SCC) for each in bindings}


def test_off_changes_nothing() -> None:
    assert constraints({}) == {}
    pod = one(render(), "DaemonSet")["spec"]["template"]["spec"]
    assert "securityContext" not in pod
    assert "env" not in pod["initContainers"][0]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({}, {"hami-scheduler": "nonroot-v2", "hami-device-plugin": "privileged"}),
        (
            {"scheduler": {"hostNetwork": True}},
            {"hami-scheduler": "hostnetwork-v2", "hami-device-plugin": "privileged"},
        ),
        ({"devicePlugin": {"enabled": False}}, {"hami-scheduler": "nonroot-v2"}),
    ],
)
def test_accounts_may_use_what_their_pods_need(values: dict[str, Any], wanted: dict[str, str]) -> None:
    assert constraints(values | ON) == wanted


def test_bindings_are_for_our_accounts_in_our_namespace_only() -> None:
    for binding in (each for each in render(ON) if each["kind"] == "RoleBinding" and SCC in each["roleRef"]["name"]):
        assert {subject["kind"] for subject in binding["subjects"]} == {"ServiceAccount"}
        assert {subject["namespace"] for subject in binding["subjects"]} == {binding["metadata"]["namespace"]}


def test_plugin_writes_to_the_host_and_its_folders_are_labelled() -> None:
    pod = one(render(ON), "DaemonSet")["spec"]["template"]["spec"]
    assert pod["securityContext"] == {"seLinuxOptions": {"type": "spc_t"}}
    [init] = pod["initContainers"]
    assert {each["name"]: each["value"] for each in init["env"]}["VGPU_SELINUX_TYPE"] == "container_file_t"
    mounted = {each["mountPath"] for each in init["volumeMounts"]}
    assert {"/usr/local/vgpu", "/tmp/vgpulock"} <= mounted


@pytest.mark.parametrize("works", [True, False])
def test_folders_are_labelled_before_files_come(tmp_path: Path, works: bool) -> None:
    """A stand-in for chcon: where it fails, SELinux is off and the library is installed all the same."""
    programs, called = tmp_path / "bin", tmp_path / "called"
    programs.mkdir()
    chcon = programs / "chcon"
    chcon.write_text(f'#!/bin/sh\necho "$@" >>{called}\nexit {int(not works)}\n')
    chcon.chmod(chcon.stat().st_mode | stat.S_IXUSR)
    source, target, lock = tmp_path / "image", tmp_path / "vgpu", tmp_path / "lock"
    source.mkdir()
    (source / "libvgpu.so.1").write_text("library")
    own = {"PATH": f"{programs}:{os.environ['PATH']}", "VGPU_SOURCE": str(source)}
    own |= {"VGPU_SELINUX_TYPE": "container_file_t", "VGPU_SELINUX_FOLDERS": str(lock)}
    script = ["sh", str(ROOT / "docker" / "vgpu-init.sh"), str(target)]
    subprocess.run(script, env=os.environ | own, check=True, capture_output=True)
    assert called.read_text() == f"-R -t container_file_t {target} {lock}\n"
    assert (target / "libvgpu.so.1").exists()
