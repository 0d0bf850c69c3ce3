"""Run a command on a machine of its own, as far as a node can tell: network, mounts, processes and cgroups.

    python -m tests.node.namespace COMMAND...

Inside, loopback is up, mounts are shared (kubelet needs that), and `/run`, `/var/lib`, `/var/log` and `/usr/local` are
written to memory only. When the command ends, however it ends, every process that it left behind dies, and no port,
rule, mount, bridge, file or cgroup stays. The environment variable HAMI_NODE_CGROUP names the cgroup inside; that it is
set tells the harness that it runs in here. Needs root.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.node import cgroups

CGROUP_ENV = "HAMI_NODE_CGROUP"
WRITTEN_TO_MEMORY = ("/var/lib", "/usr/local")
EMPTY = ("/run", "/var/log")
INSIDE = "--inside"
PREFIX = "hami-node-"
"""Of our cgroups; what follows is each run's own."""


def cgroup() -> str | None:
    """Name of the cgroup to put the node's pods under; None outside of the namespaces."""
    return os.environ.get(CGROUP_ENV)


def enter(command: Sequence[str]) -> int:
    """Run the command inside; its exit code."""
    name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    kinds = ["--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
    again = [sys.executable, "-m", "tests.node.namespace", INSIDE, *command]
    cgroups.create(name)
    try:
        with subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", "unshare", *kinds, "--", *again],
            env=os.environ | {CGROUP_ENV: name},
        ) as process:
            # unshare ignores both. Ctrl-C reaches the command by itself; being told to end means everything at once.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: process.kill())
            return process.wait()
    finally:
        cgroups.remove(name)


def run_inside(command: Sequence[str]) -> int:
    """First process of the namespaces: set up, run the command, bury orphans until it ends; its exit code."""
    _set_up()
    child = subprocess.Popen(command)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: child.send_signal(received))
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status)


def _set_up() -> None:
    _run("ip", "link", "set", "lo", "up")
    for folder in EMPTY:
        _run("mount", "-t", "tmpfs", "tmpfs", folder)
    for folder in WRITTEN_TO_MEMORY:
        layers = Path("/run/hami-node") / folder.strip("/").replace("/", "-")
        upper, work = layers / "upper", layers / "work"
        upper.mkdir(parents=True)
        work.mkdir()
        options = f"lowerdir={folder},upperdir={upper},workdir={work}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, folder)
    _run("mount", "--make-rshared", "/")


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def main() -> int:
    """Command line."""
    arguments = sys.argv[1:]
    return run_inside(arguments[1:]) if arguments[:1] == [INSIDE] else enter(arguments)


if __name__ == "__main__":
    sys.exit(main())
