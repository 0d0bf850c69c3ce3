"""Run a command in network, mount and process namespaces of its own (root only).

    python -m tests.cluster.namespace [--keep-network] COMMAND...

When the command ends, every process that it left behind dies with the namespace, and no port or mount stays.
`--keep-network` shares the network, for a cluster that people reach from another terminal. Without root the command
runs as it is: its children are tied to it by `processes.Process`, its servers listen on free loopback ports.
"""

from __future__ import annotations

import os
import sys


def command_line(command: list[str], keep_network: bool = False) -> list[str]:
    """The given command, wrapped in fresh namespaces when we may make them."""
    if os.geteuid() != 0:
        return command
    kinds = ["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "--propagation", "private"]
    if keep_network:
        return ["unshare", *kinds, "--", *command]
    loopback_up = 'ip link set lo up && exec "$@"'
    return ["unshare", "--net", *kinds, "--", "sh", "-c", loopback_up, "namespace", *command]


def main() -> None:
    """Command line; replaces this process."""
    arguments = sys.argv[1:]
    keep_network = arguments[:1] == ["--keep-network"]
    wrapped = command_line(arguments[1:] if keep_network else arguments, keep_network)
    os.execvp(wrapped[0], wrapped)


if __name__ == "__main__":
    main()
