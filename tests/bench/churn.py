"""Pod events at a steady rate, as a busy cluster's watch brings them, while filters run."""

from __future__ import annotations

import asyncio
from random import Random

from tests.bench.scenes import Scale, bound_pod
from tests.reference.subject import Subject, typed_pod


async def churn(subject: Subject, scale: Scale, seed: int, events_per_s: float) -> None:
    """Adds and deletes bound pods in turn, `events_per_s` of both together, until cancelled."""
    rng = Random(seed + 3)
    number = scale.pods
    clock = asyncio.get_running_loop()
    due = clock.time()
    while True:
        number += 1
        pod = typed_pod(bound_pod(rng, number, 0, scale))
        subject.placement.on_pod(pod)
        due += 1 / events_per_s
        await asyncio.sleep(max(0.0, due - clock.time()))
        subject.placement.on_pod_deleted(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        due += 1 / events_per_s
        await asyncio.sleep(max(0.0, due - clock.time()))
