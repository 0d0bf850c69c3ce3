"""Build and download everything that the node layer needs, before its tests lose the network.

python -m tests.node.prepare
"""

from __future__ import annotations

import sys

from hami.sim.containers import toolkit
from tests.cluster import build
from tests.node import dns, runtime, tools


def main() -> int:
    """Command line; says what is missing."""
    try:
        binaries = build.ensure()
        unpacked = tools.ensure()
        programs = runtime.build()
        dns.build()
        kit = toolkit.prepare(build.cache_root(), print)
    except (build.BuildError, tools.ToolsError, toolkit.ContainersUnavailableError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{binaries.folder}\n{unpacked.folder}\n{programs}\n{kit.shim}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
