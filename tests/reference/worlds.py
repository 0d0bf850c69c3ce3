"""Seeded random worlds as raw API objects: nodes of every register form, pods that hold cards, pods that ask for some.

`build(random.Random(seed))` is the plain driver; `strategies.worlds()` gives the same worlds to Hypothesis.
Pods that hold cards were placed by the reference, so their allocations are consistent; a few oddities are mixed in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.reference.inventory import read_node
from tests.reference.model import Config, Decision, Object
from tests.reference.reference import decide
from tests.reference.world_nodes import Size, random_node
from tests.reference.world_pods import random_pod


@dataclass(slots=True)
class World:
    """API objects of one cluster, and the pods to be placed in it, in order."""

    nodes: list[Object] = field(default_factory=list)
    pods: list[Object] = field(default_factory=list)
    quotas: list[Object] = field(default_factory=list)
    asking: list[Object] = field(default_factory=list)
    config: Config = field(default_factory=Config)

    @property
    def names(self) -> list[str]:
        return [node["metadata"]["name"] for node in self.nodes]

    def decide(self, pod: Object, names: list[str] | None = None) -> Decision:
        return decide(self.nodes, self.pods, pod, self.names if names is None else names, self.config, self.quotas)

    def hold(self, pod: Object, decision: Decision, bound: bool = True) -> None:
        """Record that the pod got what was decided."""
        if decision.node is not None:
            self.show(holding(pod, decision, bound))

    def show(self, pod: Object) -> None:
        """The API server has this pod now, in place of what it had under the same uid."""
        self.drop(pod["metadata"]["uid"])
        self.pods.append(pod)

    def drop(self, uid: str) -> None:
        self.pods = [pod for pod in self.pods if pod["metadata"]["uid"] != uid]


def holding(pod: Object, decision: Decision, bound: bool = True) -> Object:
    """The pod as the API server shows it after the decision."""
    meta = {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **decision.annotations}}
    spec = {**pod["spec"], "nodeName": decision.node} if bound else pod["spec"]
    return {**pod, "metadata": meta, "spec": spec, "status": {"phase": "Running" if bound else "Pending"}}


def build(rng: Random, size: Size | None = None) -> World:
    """A random world: the same `rng` state and size give the same world."""
    size = size or Size()
    shared_ids = rng.random() < 0.1
    world = World(config=_config(rng))
    world.nodes = [random_node(rng, f"node-{i}", size, shared_ids) for i in range(rng.randint(1, size.nodes))]
    world.quotas = _quotas(rng) if rng.random() < 0.3 and size.quotas else []
    uuids = _uuids(world.nodes)
    for i in range(rng.randint(0, size.pods)):
        pod = random_pod(rng, f"old-{i}", uuids)
        world.hold(pod, world.decide(pod))
    world.pods = [_aged(rng, pod) for pod in world.pods] + _oddities(rng, world.names)
    world.asking = [random_pod(rng, f"new-{i}", uuids) for i in range(size.asking)]
    return world


def _config(rng: Random) -> Config:
    if rng.random() < 0.6:
        return Config()
    return Config(
        default_memory=rng.choice((0, 0, 2000)),
        default_cores=rng.choice((0, 0, 15)),
        memory_factor=rng.choice((1, 1, 10)),
        node_policy=rng.choice(("binpack", "spread")),
        gpu_policy=rng.choice(("spread", "binpack", "binpack,numa")),
    )


def _quotas(rng: Random) -> list[Object]:
    def hard() -> dict[str, str]:
        found = {}
        if rng.random() < 0.8:
            found["limits.nvidia.com/gpumem"] = str(rng.choice((0, 3000, 20000, 100000)))
        if rng.random() < 0.5:
            found["limits.nvidia.com/gpucores"] = str(rng.choice((0, 60, 200)))
        if rng.random() < 0.3:
            found[rng.choice(("limits.nvidia.com/gpu", "requests.nvidia.com/gpu"))] = str(rng.choice((0, 2, 5, 20)))
        return found or {"pods": "10"}

    places = [rng.choice(("default", "team")) for _ in range(rng.randint(1, 3))]
    return [
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": f"quota-{i}", "namespace": namespace, "uid": f"uid-quota-{i}", "resourceVersion": "7"},
            "spec": {"hard": hard()},
        }
        for i, namespace in enumerate(places)
    ]


def _uuids(nodes: list[Object]) -> list[str]:
    registered = [node for node in map(read_node, nodes) if node is not None]
    return sorted({card.uuid for node in registered for card in node.cards})


def _aged(rng: Random, pod: Object) -> Object:
    """Some pods are old, ended, ending, not bound yet, or have finished their init containers."""
    fate = rng.random()
    changed: Object = json.loads(json.dumps(pod))
    if fate < 0.05:
        _rewrite_as_old_release(changed)
    elif fate < 0.1:
        del changed["spec"]["nodeName"]
        changed["status"]["phase"] = "Pending"
    elif fate < 0.15:
        changed["status"]["phase"] = rng.choice(("Succeeded", "Failed"))
    elif fate < 0.25:
        changed["metadata"]["deletionTimestamp"] = "2026-08-21T10:00:00Z"
    elif fate < 0.6:
        changed["status"]["initContainerStatuses"] = [
            _init_status(rng, container) for container in changed["spec"].get("initContainers", ())
        ]
    return changed


def _rewrite_as_old_release(pod: Object) -> None:
    """Up to 2.8: no segments for empty containers. 2.5 to 2.9: MIG by a suffix of the id."""
    notes = pod["metadata"]["annotations"]
    text = "".join(f"{part};" for part in notes["hami.io/vgpu-devices-allocated"].split(";") if part)
    if notes.pop("hami.io/vgpu-mig-allocations", None):
        text = text.replace(",NVIDIA,", "[0-1],NVIDIA,")
    notes["hami.io/vgpu-devices-allocated"] = notes["hami.io/vgpu-devices-to-allocate"] = text


def _init_status(rng: Random, container: Object) -> Object:
    running = container.get("restartPolicy") == "Always" or rng.random() < 0.15
    state: Any = {"running": {}} if running else {"terminated": {"exitCode": int(rng.random() < 0.1)}}
    return {"name": container["name"], "ready": True, "restartCount": 0, "image": "i", "imageID": "i", "state": state}


def _oddities(rng: Random, names: list[str]) -> list[Object]:
    texts = []
    if rng.random() < 0.08:
        texts.append(rng.choice(("??", "GPU-a,NVIDIA,-5,0:;", "GPU-a,NVIDIA:;", "GPU-a,NVIDIA,x,0:;")))
    if rng.random() < 0.1:
        texts.append(rng.choice(("GPU-unknown,NVIDIA,100,5:;", ",,0,0:;", ";;;", "")))
    found = []
    for i, text in enumerate(texts):
        pod = random_pod(rng, f"odd-{i}", [])
        pod["metadata"]["annotations"] = {
            "hami.io/vgpu-node": rng.choice(names),
            "hami.io/vgpu-devices-allocated": text,
            "hami.io/vgpu-devices-to-allocate": text,
        }
        pod["spec"]["nodeName"] = pod["metadata"]["annotations"]["hami.io/vgpu-node"]
        pod["status"] = {"phase": "Running"}
        found.append(pod)
    return found
