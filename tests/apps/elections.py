"""Two replicas, and which of them leads."""

from __future__ import annotations

import asyncio

from hami.apps.scheduler import Scheduler
from tests.apps.rig import LEASE, LEASE_SPACE, Rig, pod


def election(name: str) -> list[str]:
    return [
        "--leader-elect=true",
        f"--leader-elect-resource-name={LEASE}",
        f"--leader-elect-resource-namespace={LEASE_SPACE}",
        f"--identity={name}",
        f"--pod-name={name}",
        "--pod-namespace=default",
    ]


async def two_replicas(rig: Rig) -> tuple[Scheduler, Scheduler]:
    for name in ("a-1", "a-10"):
        await rig.cluster.apply(pod(name, scheduler="default-scheduler"))
    first, second = await asyncio.gather(rig.replica(*election("a-1")), rig.replica(*election("a-10")))
    return first, second
