"""Clusters and request bodies of the benchmark, as raw API objects, from a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from tests.reference.model import Object
from tests.reference.worlds import World

MEMORY_MIB = 81920
MODEL = "NVIDIA A100-SXM4-80GB"
SHARES_MIB = (2048, 8192, 16384, 40960)
CORES = (0, 10, 25, 50)
MOST_SHARES = 8
"""Bound pods on a card that is not full: two of its ten slots stay free."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large a cluster is; `names` is kube-scheduler's default share of candidates."""

    nodes: int
    cards: int
    pods: int

    @property
    def names(self) -> int:
        return max(min(self.nodes, 100), self.nodes // 10)

    @property
    def label(self) -> str:
        return f"{self.nodes} nodes x {self.cards} cards, {self.pods} pods"


@dataclass(frozen=True, slots=True)
class Scene:
    """A cluster and what is asked of it.

    Attributes:
        full_share: this share of the nodes has no memory left.
        notes: annotations of the asking pods.
        limits: makes the limits of asking pod number i.
        all_names: send every name instead of the default share.
        fits: whether the requests can be placed at all.
    """

    name: str
    scale: Scale
    limits: Callable[[Random, int], Object]
    full_share: float = 0.0
    mig: bool = False
    all_names: bool = False
    fits: bool = True
    notes: tuple[tuple[str, str], ...] = ()

    def cluster(self, seed: int) -> World:
        """Nodes and bound pods. The same seed gives the same cluster."""
        return World(nodes=list(self.nodes(seed)), pods=list(self.pods(seed)))

    def nodes(self, seed: int) -> Iterator[Object]:
        rng = Random(seed)
        return (self._node(rng, i) for i in range(self.scale.nodes))

    def pods(self, seed: int) -> Iterator[Object]:
        """Nodes that are full first, then small shares on the others."""
        if self.mig:
            return
        rng = Random(seed + 4)
        full = round(self.full_share * self.scale.nodes)
        for node in range(full):
            for card in range(self.scale.cards):
                yield _filler(node, card)
        fillers = full * self.scale.cards
        shares = min(self.scale.pods - fillers, MOST_SHARES * self.scale.cards * (self.scale.nodes - full))
        for i in range(shares):
            yield bound_pod(rng, i, full, self.scale)

    @property
    def cluster_key(self) -> tuple[float, bool]:
        """Scenes with the same key share one cluster."""
        return (self.full_share, self.mig)

    def asking(self, seed: int, count: int) -> list[Object]:
        rng = Random(seed + 1)
        return [self._pod(i, self.limits(rng, i)) for i in range(count)]

    def names(self, world: World, seed: int) -> list[str]:
        """The candidates of every request, in random order as kube-scheduler's rotation gives them."""
        rng = Random(seed + 2)
        names = world.names
        chosen = names if self.all_names else rng.sample(names, self.scale.names)
        return rng.sample(chosen, len(chosen))

    def _pod(self, i: int, limits: Object) -> Object:
        meta = {
            "name": f"{self.name}-{i}",
            "namespace": "default",
            "uid": f"uid-{self.name}-{i}",
            "resourceVersion": "77",
            "annotations": dict(self.notes),
            "labels": {"app": "bench"},
        }
        container = {"name": "main", "image": "cuda:12", "resources": {"limits": limits, "requests": limits}}
        spec = {"schedulerName": "hami-scheduler", "containers": [container]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}

    def _node(self, rng: Random, i: int) -> Object:
        name = node_name(i)
        cards = [_card(name, index, self.mig) for index in range(self.scale.cards)]
        pairs = [
            {"uuid": a["id"], "score": {b["id"]: rng.choice((20, 40, 300)) for b in cards if b is not a}} for a in cards
        ]
        notes = {"hami.io/node-nvidia-register": json.dumps(cards), "hami.io/node-nvidia-score": json.dumps(pairs)}
        slots = str(10 * self.scale.cards)
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "5", "annotations": notes},
            "spec": {},
            "status": {"allocatable": {"nvidia.com/gpu": slots}, "capacity": {"nvidia.com/gpu": slots}},
        }


def node_name(i: int) -> str:
    return f"gpu-worker-{i:05d}.pool.example"


def card_id(node: str, index: int) -> str:
    return f"GPU-{node[11:16]}-5c87-89ac-b1a6-7b53aa24b{index:03d}"


def _card(node: str, index: int, mig: bool) -> Object:
    card = {
        "id": card_id(node, index),
        "index": index,
        "count": 10,
        "devmem": MEMORY_MIB,
        "devcore": 100,
        "type": MODEL,
        "numa": index // 4,
        "mode": "hami-core",
        "health": True,
    }
    if mig:
        profiles = (("1g.10gb", 9728, 14, 1, 1, range(7)), ("3g.40gb", 40192, 42, 3, 4, (0, 4)))
        card |= {
            "mode": "mig",
            "count": 7,
            "migProfiles": [
                {
                    "name": name,
                    "memoryMB": memory,
                    "core": core,
                    "sliceCount": slices,
                    "placements": [{"start": start, "size": size} for start in starts],
                }
                for name, memory, core, slices, size, starts in profiles
            ],
        }
    return card


def _holding(i: int | str, node: str, allocated: str) -> Object:
    notes = {
        "hami.io/vgpu-node": node,
        "hami.io/vgpu-devices-allocated": allocated,
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-time": "1786000000",
    }
    meta = {"name": f"run-{i}", "namespace": "default", "uid": f"run-uid-{i}", "resourceVersion": "6"}
    spec = {"nodeName": node, "schedulerName": "hami-scheduler", "containers": [{"name": "main", "image": "cuda:12"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {**meta, "annotations": notes},
        "spec": spec,
        "status": {"phase": "Running"},
    }


def bound_pod(rng: Random, i: int, full: int, scale: Scale) -> Object:
    """A small share on one card of a node that is not full (ten shares of 2 GiB fit a card)."""
    free = max(scale.nodes - full, 1)
    node = node_name(full + i % free)
    card = card_id(node, i // free % scale.cards)
    return _holding(i, node, f"{card},NVIDIA,{rng.choice((1024, 2048))},{rng.choice((0, 5))}:;")


def _filler(node: int, card: int) -> Object:
    name = node_name(node)
    return _holding(f"{node}-{card}", name, f"{card_id(name, card)},NVIDIA,{MEMORY_MIB},50:;")


def limits(gpus: int, memory_mib: int, cores: int) -> Object:
    return {"nvidia.com/gpu": str(gpus), "nvidia.com/gpumem": str(memory_mib), "nvidia.com/gpucores": str(cores)}


def _mixed(rng: Random, _: int) -> Object:
    gpus = rng.choices((1, 2, 8), (90, 8, 2))[0]
    return limits(gpus, rng.choice(SHARES_MIB), rng.choice(CORES))


def _new_shape(_: Random, i: int) -> Object:
    return limits(1, 2048 + 7 * i, i % 50)


def _one(_: Random, i: int) -> Object:
    return limits(1, SHARES_MIB[i % 3], 10)


def _two(_: Random, i: int) -> Object:
    return limits(2, SHARES_MIB[i % 3], 10)


def _too_much(_: Random, i: int) -> Object:
    return limits(1, MEMORY_MIB + 1 + i % 4, 0)


FULL = Scale(5000, 8, 50_000)
QUICK = Scale(500, 8, 5_000)


def scenes(scale: Scale) -> list[Scene]:
    """Every cluster and request mix of the filter part."""
    mig_scale = Scale(scale.nodes, scale.cards, 0)
    topology = (("hami.io/gpu-scheduler-policy", "topology-aware"),)
    return [
        Scene("filter-names", scale, _mixed),
        Scene("filter-all", scale, _mixed, all_names=True),
        Scene("new-shape", scale, _new_shape),
        Scene("full-cluster", scale, _one, full_share=0.99, all_names=True),
        Scene("nothing-fits-names", scale, _too_much, fits=False),
        Scene("nothing-fits-all", scale, _too_much, all_names=True, fits=False),
        Scene("mig", mig_scale, _one, mig=True),
        Scene("numa", scale, _two, notes=(("nvidia.com/numa-bind", "true"),)),
        Scene("topology", scale, _two, notes=topology),
        Scene("spread", scale, _mixed, notes=(("hami.io/node-scheduler-policy", "spread"),)),
    ]


def filter_body(pod: Object, names: list[str]) -> bytes:
    """ExtenderArgs as kube-scheduler sends them with `nodeCacheCapable`."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": names}, separators=(",", ":")).encode()
