"""Builds and fetches everything that the cluster layer needs, before its tests lose the network.

python -m tests.helm.prepare
"""

from __future__ import annotations

import sys
import time

from scripts import helm_tool
from scripts import images as ours
from scripts.buildah import BuildahError, provide
from scripts.images import Image
from tests.cluster import build
from tests.helm import tenant
from tests.node import runtime, tools


def images() -> list[Image]:
    """The images of a default install, and the tenants'; built where they are not yet."""
    return [ours.ensure("hami-scheduler"), ours.ensure("hami-device-plugin"), ours.ensure("kube-scheduler"),
            tenant.ensure_image()]  # fmt: skip


def main() -> int:
    """Command line; says what is missing."""
    try:
        build.ensure()
        tools.ensure()
        runtime.build()
        helm_tool.program()
        provide()
        started = time.monotonic()
        made = images()
    except (build.BuildError, tools.ToolsError, BuildahError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"images ready after {time.monotonic() - started:.0f} s: {', '.join(image.reference for image in made)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
