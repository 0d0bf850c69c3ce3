"""Random Node objects: register forms, models, MIG, NUMA, health, cordon, pair scores."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from tests.reference.model import Object

MODELS = (
    ("NVIDIA A100-SXM4-80GB", 81920),
    ("NVIDIA-Tesla V100-PCIE-32GB", 32768),
    ("NVIDIA-NVIDIA A10", 23028),
    ("NVIDIA H100 80GB HBM3", 81559),
    ("NVIDIA", 16384),
    ("Tesla T4", 15109),
)
MIG_PROFILES = (
    ("1g.10gb", 9728, 14, 1, 1, tuple(range(7))),
    ("2g.20gb", 19968, 28, 2, 2, (0, 2, 4)),
    ("3g.40gb", 40192, 42, 3, 4, (0, 4)),
    ("7g.79gb", 80896, 100, 7, 8, (0,)),
)


@dataclass(frozen=True, slots=True)
class Size:
    """Upper bounds of a world; `asking` is the exact number of pods to place."""

    nodes: int = 4
    cards: int = 4
    pods: int = 8
    asking: int = 4
    quotas: bool = True


def random_node(rng: Random, name: str, size: Size, shared_ids: bool) -> Object:
    """A node; now and then one that is not registered."""
    cards = [_card(rng, f"GPU-{'x' if shared_ids else name}-{i}", i) for i in range(rng.randint(1, size.cards))]
    if rng.random() < 0.5:
        model, memory = rng.choice(MODELS)
        for card in cards:
            if card["mode"] != "mig":
                card["type"], card["devmem"] = model, memory
    notes = {"hami.io/node-nvidia-register": _register(rng, cards)}
    if rng.random() < 0.1:
        notes["hami.io/device-cordon"] = ", ".join(rng.sample([c["id"] for c in cards], rng.randint(1, len(cards))))
    if rng.random() < 0.5:
        notes["hami.io/node-nvidia-score"] = _pair_scores(rng, [card["id"] for card in cards])
    odd = rng.random()
    if odd < 0.04:
        del notes["hami.io/node-nvidia-register"]
    elif odd < 0.07:
        notes["hami.io/node-nvidia-register"] = rng.choice(("garbage:", "GPU-a,10,abc,100,NVIDIA-X,0,true:", "[", "[]"))
    meta = {"name": name, "uid": f"uid-{name}", "resourceVersion": "5", "annotations": notes, "labels": {"gpu": "on"}}
    slots = str(max(sum(card["count"] for card in cards), 1))
    status = {"allocatable": {"nvidia.com/gpu": slots}, "capacity": {"nvidia.com/gpu": slots}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": {}, "status": status}


def _card(rng: Random, uuid: str, index: int) -> Object:
    model, memory = rng.choice(MODELS)
    card: Object = {
        "id": uuid,
        "index": index,
        "count": rng.choice((10, 10, 10, 4, 2, 1)),
        "devmem": memory,
        "devcore": rng.choice((100, 100, 100, 100, 200, 50)),
        "type": model,
        "numa": rng.randint(0, 1),
        "mode": "mps" if rng.random() < 0.05 else "hami-core",
        "health": rng.random() < 0.94,
    }
    if rng.random() < 0.12:
        card |= {"mode": "mig", "count": 7, "devcore": 100, "devmem": 81920, "type": MODELS[0][0]}
        if rng.random() < 0.9:
            card["migProfiles"] = [_profile(*profile) for profile in MIG_PROFILES]
    elif rng.random() < 0.03:
        card[rng.choice(("count", "devmem"))] = 0
    return card


def _profile(name: str, memory: int, core: int, slices: int, size: int, starts: tuple[int, ...]) -> Object:
    places = [{"start": start, "size": size} for start in starts]
    return {"name": name, "memoryMB": memory, "core": core, "sliceCount": slices, "placements": places}


def _register(rng: Random, cards: list[Object]) -> str:
    """JSON without zero values mostly; both CSV forms where the cards allow it."""
    form = rng.random()
    if form < 0.7 or any("migProfiles" in card for card in cards):
        kept = [{key: value for key, value in card.items() if value not in (0, False)} for card in cards]
        if rng.random() < 0.1:
            rng.shuffle(kept)
        return json.dumps(kept)
    fields: tuple[str, ...] = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")
    fields = fields[:7] if form < 0.85 else fields
    return "".join(",".join(_csv(card[name]) for name in fields) + ":" for card in cards)


def _csv(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _pair_scores(rng: Random, uuids: list[str]) -> str:
    table: dict[str, dict[str, int]] = {uuid: {} for uuid in uuids}
    for i, first in enumerate(uuids):
        for second in uuids[i + 1 :]:
            if rng.random() < 0.9:
                table[first][second] = table[second][first] = rng.choice((10, 20, 40, 100, 200))
    return json.dumps([{"uuid": uuid, "score": row} for uuid, row in table.items()])
