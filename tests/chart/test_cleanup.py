"""The chart that takes what an uninstalled release left: it looks where the release wrote, and needs no more rights."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, ROOT, helm, one, render

CLEANUP = CHART.parent / "hami-cleanup"
SCRIPT = ROOT / "docker" / "clean-node.sh"


def cleanup(*settings: str) -> list[dict[str, Any]]:
    command = [str(helm()), "template", "gone", str(CLEANUP), "--namespace", "hami-system", *settings]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout
    return [each for each in yaml.safe_load_all(text) if each]


def host_paths(pod: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each}


def test_it_looks_where_the_release_wrote() -> None:
    values = {"global": {"gpuHookPath": "/opt/gpu"}}
    plugin = one(render(values), "DaemonSet")["spec"]["template"]["spec"]
    pod = one(cleanup("--set=global.gpuHookPath=/opt/gpu"), "DaemonSet")["spec"]["template"]["spec"]
    wrote, looked = host_paths(plugin), host_paths(pod)
    assert wrote["vgpu"] == f"{looked['hook']}/vgpu"
    assert wrote["lock"] == f"{looked['lock']}/vgpulock"
    assert (wrote["cdi"], wrote["kubelet"]) == (looked["cdi"], looked["kubelet"])
    assert plugin["nodeSelector"] == pod["nodeSelector"]
    assert one(render(), "DaemonSet")["spec"]["template"]["spec"]["containers"][0]["image"].endswith(
        pod["containers"][0]["image"]
    )


def test_images_and_secrets_can_be_redirected() -> None:
    values = ["--set=global.imageRegistry=r.example/m,global.imagePullSecrets={one},devicePlugin.image.tag=v9"]
    pod = one(cleanup(*values), "DaemonSet")["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == "r.example/m/hami-device-plugin:v9"
    assert pod["imagePullSecrets"] == [{"name": "one"}]


def test_simulated_cards_were_on_every_node() -> None:
    assert (
        "nodeSelector" not in one(cleanup("--set=devicePlugin.simulate=a100"), "DaemonSet")["spec"]["template"]["spec"]
    )


def test_rights_are_those_of_the_clean_up() -> None:
    [role] = [each for each in cleanup() if each["kind"] == "ClusterRole"]
    rights = {(what, verb) for rule in role["rules"] for what in rule["resources"] for verb in rule["verbs"]}
    assert rights == {("nodes", "get"), ("nodes", "patch"), ("pods", "list")}


def run_script(tmp_path: Path, folders: str, status: int = 0) -> tuple[str, Path]:
    """The script on a stand-in host; `hami` (first with that status) and `sleep` are stand-ins. What it said, and the
    host. Raises subprocess.CalledProcessError."""
    host, programs = tmp_path / "host", tmp_path / "bin"
    for folder in (f"hook/vgpu/containers/{folders}", "tmp/vgpulock", "cdi", "kubelet"):
        (host / folder).mkdir(parents=True, exist_ok=True)
    (host / "tmp/vgpulock/lock").touch()
    programs.mkdir()
    for name, text in {
        "hami": f"#!/bin/sh\n[ -e {tmp_path}/tried ] && exit 0\ntouch {tmp_path}/tried\nexit {status}\n",
        # The share ends while the script sleeps; `sleep infinity` returns so that the test does.
        "sleep": f"#!/bin/sh\nrm -rf {host}/hook/vgpu/containers/*\n",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = tmp_path / "script.sh"
    text = SCRIPT.read_text().replace("=/tmp/", f"={tmp_path}/").replace(" /tmp/", f" {tmp_path}/")
    script.write_text(text.replace("/host/", f"{host}/"))
    own = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", str(script)], env=own, capture_output=True, text=True, check=True, timeout=240)
    return done.stdout, host


def test_a_node_without_shares_is_cleaned_at_once(tmp_path: Path) -> None:
    said, host = run_script(tmp_path, "")
    assert said == "node is clean\n"
    assert not (host / "hook/vgpu").exists()
    assert not (host / "tmp/vgpulock").exists()
    assert (tmp_path / "clean").exists()


def test_a_share_in_use_is_waited_for(tmp_path: Path) -> None:
    said, host = run_script(tmp_path, "uid_main")
    assert said.startswith("a container holds a share here")
    assert said.endswith("node is clean\n")
    assert not (host / "hook/vgpu").exists()


def test_a_plugin_that_still_runs_is_waited_for(tmp_path: Path) -> None:
    said, _ = run_script(tmp_path, "", status=1)
    assert said == "not clean yet: trying again in 5 s\nnode is clean\n"


def test_settings_that_can_never_work_end_it(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        run_script(tmp_path, "uid_main", status=2)
    assert failed.value.returncode == 2
    assert (tmp_path / "host/hook/vgpu/containers/uid_main").exists()


def test_the_clean_up_takes_its_arguments(tmp_path: Path) -> None:
    """The real program, up to the API server that is not there: not status 2, which would mean wrong settings."""
    text = SCRIPT.read_text().replace("=/tmp/", f"={tmp_path}/").replace(" /tmp/", f" {tmp_path}/")
    for folder in ("hook", "tmp", "cdi", "kubelet"):
        (tmp_path / "host" / folder).mkdir(parents=True)
    (tmp_path / "sleep").write_text("#!/bin/sh\nkill -9 $PPID\n")
    (tmp_path / "sleep").chmod(0o755)
    (tmp_path / "script.sh").write_text(text.replace("/host/", f"{tmp_path}/host/"))
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:9"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {}}]
    kubeconfig.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"})
    )
    own = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}", "NODE_NAME": "n"}
    own["KUBECONFIG"] = str(kubeconfig)
    done = subprocess.run(
        ["sh", str(tmp_path / "script.sh")],
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert "not clean yet: trying again" in done.stdout, done.stderr
    assert "127.0.0.1:9" in done.stderr
