"""How often the plugin is started anew in place after a fault of its own (spec/node 2.1).

Pure: time is passed in. Kubelet would start the process anew too, but slower, and with the node's cards gone meanwhile.
"""

from __future__ import annotations

from typing import Final

ALLOWED_CRASHES: Final = 5
FORGOTTEN_AFTER_S: Final = 3600.0


class CrashPolicy:
    """Counts crashes, each within an hour of the one before."""

    def __init__(self) -> None:
        self.crashes = 0
        self._last_s = 0.0

    def may_go_on(self, now_s: float) -> bool:
        """Takes a crash; whether the plugin should be started again."""
        if self.crashes and now_s - self._last_s > FORGOTTEN_AFTER_S:
            self.crashes = 0
        self.crashes += 1
        self._last_s = now_s
        return self.crashes <= ALLOWED_CRASHES
