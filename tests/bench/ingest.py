"""Decoding and loading a cluster against the official client's decoding of the same objects."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from itertools import islice
from statistics import median
from typing import Any

from kubernetes.client import ApiClient

from hami.apps.runtime import SystemClock
from hami.core.model import Policies
from hami.core.objects import pod_decoder
from hami.placement.world import World as Placement
from tests.bench.scenes import Scale, scenes
from tests.reference.model import Config
from tests.reference.subject import registry_of

SAMPLE = 60
"""Objects that the official client decodes; it needs several milliseconds for each."""


def ingest(loop: asyncio.AbstractEventLoop, scale: Scale, seed: int) -> dict[str, float]:
    """Per object: official client's decode / our decode and load; and the longest slice of our load."""
    scene = scenes(scale)[0]
    raw = [_grown(pod) for pod in islice(scene.pods(seed), 50 * SAMPLE)]
    lists = json.dumps(
        {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": list(map(json.loads, raw[:SAMPLE]))}
    )
    client = ApiClient()
    official_s = _median_s(lambda: client.deserialize(lists, "V1PodList", "application/json")) / SAMPLE
    ours_s = _median_s(lambda: loop.run_until_complete(_load(raw))) / len(raw)
    return {"official client's decode / our decode and load, per pod (floor 10)": official_s / ours_s}


async def _load(raw: list[bytes]) -> None:
    placement = Placement(registry_of(Config()), Policies(), SystemClock())
    await placement.pods_replaced([pod_decoder.decode(text) for text in raw])


def _grown(pod: dict[str, Any]) -> bytes:
    """The pod at the size that real ones have (about 4 KB), with fields that we do not read."""
    pod["metadata"]["managedFields"] = [
        {"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": {}}
    ]
    container = pod["spec"]["containers"][0]
    container["env"] = [{"name": f"VARIABLE_{i}", "value": "x" * 30} for i in range(40)]
    container["volumeMounts"] = [{"name": f"v{i}", "mountPath": f"/mnt/{i}"} for i in range(10)]
    return json.dumps(pod).encode()


def _median_s(run: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return median(taken)
