"""Random Pod objects that ask for shares, with every selection rule."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.reference.model import Object

POLICIES = (
    "binpack",
    "spread",
    "mutex",
    "numa",
    "topology-aware",
    "binpack,numa",
    "numa,binpack",
    "spread,numa",
    "numa,spread",
    "mutex,binpack",
    "topology-aware,binpack",
)
MODE_RULES = ("hami-core", "mig", "mps", "hami-core,mig")
TYPE_WORDS = ("A100", "a100,v100", "nvidia", "H100, A10", "T4", "V100,,A10")


def random_pod(rng: Random, name: str, uuids: list[str]) -> Object:
    """A pod with one to three app containers, at times init containers and native sidecars."""
    apps = [_container(rng, f"app-{i}", 0.75) for i in range(rng.choice((1, 1, 1, 2, 2, 3)))]
    spec: Object = {"schedulerName": "hami-scheduler", "containers": apps}
    if rng.random() < 0.25:
        spec["initContainers"] = [_init_container(rng, i) for i in range(rng.randint(1, 2))]
    meta = {
        "name": name,
        "namespace": rng.choice(("default", "default", "team")),
        "uid": f"uid-{name}",
        "resourceVersion": "9",
        "creationTimestamp": "2026-08-21T10:00:00Z",
        "annotations": _rules(rng, uuids),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def _init_container(rng: Random, i: int) -> Object:
    container = _container(rng, f"init-{i}", 0.7)
    return container | ({"restartPolicy": "Always"} if rng.random() < 0.4 else {})


def _container(rng: Random, name: str, asks: float) -> Object:
    values = _request(rng) if rng.random() < asks else {}
    part = "requests" if rng.random() < 0.1 else "limits"
    return {"name": name, "image": "cuda", "resources": {part: values} if values else {}}


def _request(rng: Random) -> dict[str, str]:
    found: dict[str, Any] = {"nvidia.com/gpu": rng.choice((1, 1, 1, 1, 2, 2, 3))}
    if rng.random() < 0.7:
        found["nvidia.com/gpumem"] = rng.choice((0, 500, 1000, "3k", 8000, 15000, 30000))
    if rng.random() < 0.25:
        found["nvidia.com/gpumem-percentage"] = rng.choice((1, 10, 33, 50, 100))
    if rng.random() < 0.6:
        found["nvidia.com/gpucores"] = rng.choice((0, 10, 30, 50, 100))
    return {key: str(value) for key, value in found.items()}


def _rules(rng: Random, uuids: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}

    def at_times(chance: float, key: str, *values: str) -> None:
        if values and rng.random() < chance:
            found[key] = rng.choice(values)

    at_times(0.3, "hami.io/node-scheduler-policy", "binpack", "spread")
    at_times(0.5, "hami.io/gpu-scheduler-policy", *POLICIES)
    at_times(0.15, "hami.io/device-scoring-weights", "slot=1,core=1,memory=3", "memory=0,slot=2,core=0")
    at_times(0.15, "nvidia.com/use-gputype", "", *TYPE_WORDS)
    at_times(0.1, "nvidia.com/nouse-gputype", "", *TYPE_WORDS)
    at_times(0.1, "nvidia.com/numa-bind", "true", "1", "false", "yes")
    at_times(0.12, "nvidia.com/vgpu-mode", *MODE_RULES)
    for key in ("use-gpuuuid", "nouse-gpuuuid"):
        if uuids and rng.random() < 0.08:
            found[f"nvidia.com/{key}"] = ", ".join(rng.sample(uuids, rng.randint(1, min(3, len(uuids)))))
    return found
