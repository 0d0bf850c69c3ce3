"""Who runs containers: a protocol, and the default that only lets time pass."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from hami.sim.kubelet.allocation import Allocation
from hami.sim.objects import Obj, dig

RUN_SECONDS: Final = "sim.hami.io/run-seconds"
"""Pod annotation: app containers end with exit code `sim.hami.io/exit-code` after so many seconds."""
INIT_SECONDS: Final = "sim.hami.io/init-seconds"
"""Pod annotation: how long each init container runs; 0 without it."""
STOP_SECONDS: Final = "sim.hami.io/stop-seconds"
"""Pod annotation: how long a container takes to end after it was told to."""
EXIT_CODE: Final = "sim.hami.io/exit-code"


@dataclass(frozen=True, slots=True)
class ContainerStart:
    """Everything that a runtime would be told about one container."""

    pod: Obj
    container: Obj
    is_init: bool
    allocations: tuple[Allocation, ...]

    @property
    def env(self) -> dict[str, str]:
        """The plugins' variables, then the container's own literal ones: as with kubelet, the later ones win."""
        merged: dict[str, str] = {}
        for one in self.allocations:
            merged |= one.env
        return merged | {var["name"]: var.get("value", "") for var in self.container.get("env") or []}


class ContainerRunner(Protocol):
    """Runs one container to its end. Cancelled to stop it, with the pod's grace period to obey."""

    async def run(self, start: ContainerStart) -> int:
        """Returns the exit code."""
        ...


class SimulatedRunner:
    """Containers without processes, steered by annotations of the pod."""

    async def run(self, start: ContainerStart) -> int:
        """Sleep as the annotations say; without `run-seconds` an app container runs until it is stopped."""
        annotations = dig(start.pod, "metadata", "annotations", default={})
        seconds = annotations.get(INIT_SECONDS, "0") if start.is_init else annotations.get(RUN_SECONDS)
        try:
            if seconds is None:
                await asyncio.Event().wait()
            await asyncio.sleep(float(seconds or 0))
        except asyncio.CancelledError:
            await asyncio.sleep(float(annotations.get(STOP_SECONDS, 0)))
            return 143
        return 0 if start.is_init else int(annotations.get(EXIT_CODE, 0))
