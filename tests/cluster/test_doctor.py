"""`hami doctor` on a real control plane: sound, then with a part missing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.components import HAMI, Cluster
from tests.cluster.conftest import running
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import Workspace, gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until


@pytest.fixture(scope="module")
def cluster(plane: ControlPlane) -> Iterator[Cluster]:
    with running(Cluster(plane)) as cluster:
        cluster.add_nodes(["a100x4", "a100x4"])
        yield cluster


def examined(cluster: Cluster) -> tuple[int, dict[str, Any]]:
    """Exit status and report."""
    command = [str(HAMI), "doctor", "-o", "json", "--kubeconfig", str(cluster.plane.admin_kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def checks(report: dict[str, Any]) -> set[tuple[str, str]]:
    return {(each["check"], each["subject"]) for each in report["findings"] if each["severity"] != "note"}


def test_a_sound_cluster_is_called_sound(cluster: Cluster, workspace: Workspace) -> None:
    for number in range(4):
        workspace.add(gpu_pod(f"p{number}", {"gpu": 1, "gpumem": 1000}))
    for number in range(4):
        workspace.wait_phase(f"p{number}")

    def sound() -> bool:  # the last hand-off ends a moment after the pod runs
        status, report = examined(cluster)
        assert (status, report["ok"], checks(report)) == (0, True, set())
        assert (report["nodes"], report["cards"]) == (2, 8)
        return True

    wait_until(sound, PATIENCE_S, "the doctor finds nothing")


def test_a_dead_plugin_and_a_dead_webhook_are_named(cluster: Cluster) -> None:
    dead = min(cluster.nodes)
    cluster.nodes[dead].plugin.kill()
    stale = ("stale-registration", f"node {dead}")
    wait_until(lambda: stale in checks(examined(cluster)[1]), PATIENCE_S, "the dead plugin")
    cluster.scheduler.process.kill()

    def both_named() -> bool:
        status, report = examined(cluster)
        assert (status, checks(report)) == (1, {stale, ("webhook", "webhook hami-webhook")})
        assert all(each["advice"] for each in report["findings"])
        return True

    wait_until(both_named, PATIENCE_S, "the dead plugin and the dead webhook")
