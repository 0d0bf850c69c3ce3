"""The control plane without our components: it starts, it enforces the chart's roles, and it dies with its parent."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.api import Api, ApiError
from tests.cluster.build import Binaries
from tests.cluster.controlplane import ControlPlane
from tests.cluster.pods import gpu_pod
from tests.cluster.processes import PATIENCE_S, wait_until

PARENT = """
import sys, time
from pathlib import Path
from tests.cluster import build
from tests.cluster.controlplane import ControlPlane
plane = ControlPlane(build.ensure(), Path(sys.argv[1]))
plane.start()
print(*(process.pid for process in plane.processes()), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def started(plane: ControlPlane) -> ControlPlane:
    plane.start()
    return plane


def test_versions_and_default_scheduler(started: ControlPlane) -> None:
    assert f"Server Version: v{started.binaries.kubernetes_version}" in started.kubectl("version")
    started.api.post("/api/v1/namespaces/default/pods", gpu_pod("no-node", {}))
    wait_until(
        lambda: "no nodes available" in started.kubectl("describe", "pod", "no-node"),
        PATIENCE_S,
        "default-scheduler's event",
    )
    started.kubectl("delete", "pod", "no-node", "--now")


@pytest.mark.parametrize(
    ("account", "method", "path", "allowed"),
    [
        ("hami-scheduler", "GET", "/api/v1/nodes", True),
        ("hami-scheduler", "GET", "/api/v1/pods", True),
        ("hami-scheduler", "GET", "/api/v1/resourcequotas", True),
        ("hami-scheduler", "GET", "/api/v1/secrets", False),
        ("hami-scheduler", "PATCH", "/api/v1/namespaces/default/pods/any", False),
        ("hami-scheduler", "DELETE", "/api/v1/namespaces/default/pods/any", False),
        ("hami-device-plugin", "GET", "/api/v1/nodes", True),
        ("hami-device-plugin", "GET", "/api/v1/resourcequotas", False),
        ("hami-device-plugin", "DELETE", "/api/v1/nodes/any", False),
    ],
)
def test_our_identities_have_the_charts_rights_only(
    started: ControlPlane, account: str, method: str, path: str, allowed: bool
) -> None:
    api = Api(started.server, started.authority.cert, started.service_account_pair(account))
    with contextlib.closing(api) as identity:
        if allowed:
            # The API server sees new roles a moment after they are made.
            wait_until(lambda: "items" in identity.call(method, path), PATIENCE_S, f"{account} may {method} {path}")
            return
        with pytest.raises(ApiError) as refused:
            identity.call(method, path, {} if method == "PATCH" else None, "application/merge-patch+json")
        assert refused.value.status == 403


def test_nothing_outlives_a_killed_parent(binaries: Binaries, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        try:
            assert len(pids) == 5
            assert all(running(pid) for pid in pids)
        finally:
            parent.send_signal(signal.SIGKILL)
    wait_until(lambda: not any(running(pid) for pid in pids), PATIENCE_S, f"{pids} dead")


def running(pid: int) -> bool:
    """True while the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
