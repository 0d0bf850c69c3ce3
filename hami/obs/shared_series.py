"""What the metrics pages of scheduler and monitor have alike (spec/contract 3.6): the zone, and the build."""

from __future__ import annotations

import platform
from typing import Final

from hami import __version__

ZONE: Final = "vGPU"
"""Value of the label `zone` of every card."""
BUILD: Final = "hami_build_info"
BUILD_TEXT: Final = "Build"
BUILD_LABELS: Final = ("version", "revision", "build_date", "go_version", "compiler", "platform")


def build_values() -> tuple[str, ...]:
    """Values of `BUILD_LABELS`; empty for what a Python build has not."""
    return (__version__, "", "", "", platform.python_implementation(), platform.machine())
