"""The namespaces of the node layer: what runs inside leaves nothing behind. They can be nested, hence tried here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.processes import PATIENCE_S
from tests.node import cgroups, namespace

pytestmark = pytest.mark.skipif(namespace.cgroup() is None, reason="part of the node layer: needs root")

LEAVES = """
set -e
ip link show lo | grep -q UP
touch /var/lib/left-behind /usr/local/left-behind /run/left-behind /var/log/left-behind
find /sys/fs/cgroup -maxdepth 2 -name "$HAMI_NODE_CGROUP" -prune -exec mkdir {}/below ';' -print | grep -c . >/dev/null
sleep 1000 >/dev/null 2>&1 &
echo "$HAMI_NODE_CGROUP $(readlink /proc/self/ns/pid)"
exit 7
"""


def test_nothing_is_left_behind() -> None:
    command = [sys.executable, "-m", "tests.node.namespace", "sh", "-c", LEAVES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 7, done.stderr
    name, processes = done.stdout.split()
    assert name.startswith(namespace.PREFIX)
    assert not [hierarchy for hierarchy in cgroups.hierarchies() if (hierarchy / name).exists()]
    assert processes != str(Path("/proc/self/ns/pid").readlink()), "the command's process numbers are its own"
    for folder in (*namespace.EMPTY, *namespace.WRITTEN_TO_MEMORY):
        assert not Path(folder, "left-behind").exists()
