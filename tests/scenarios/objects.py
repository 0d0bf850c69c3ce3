"""From a scenario to API objects, and from names in the cluster back to those of the scenario."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hami.nvml.simulated_mig import mig_uuid
from tests.scenarios.check import PLACEHOLDER
from tests.scenarios.model import Card, Limits, NewPod, Node, Present, Scenario, Share

Object = dict[str, Any]

VENDOR = "nvidia.com"
REGISTER = "hami.io/node-nvidia-register"
HANDSHAKE = "hami.io/node-handshake"
ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
SLICES = "hami.io/vgpu-mig-allocations"
CHOSEN_NODE = "hami.io/vgpu-node"
BIND_PHASE = "hami.io/bind-phase"
NODE_LOCK = "hami.io/mutex.lock"
NO_WEBHOOK = {"hami.io/webhook": "ignore"}
LABEL = "scenario"
IMAGE = "registry.invalid/none:1"
MOST_MIG_INSTANCES = 16


class Names:
    """Names of one scenario in the cluster: nodes carry the scenario's name, cards their node's."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.namespace = scenario.name
        self._nodes: dict[str, str] = {}
        self._cards: dict[str, list[str]] = {}
        for name, node in scenario.nodes.items():
            self.bind_node(name, f"{scenario.name}-{name}", [])
            self._cards[name] = [f"GPU-{self._nodes[name]}-{index}" for index in range(len(node.cards))]

    def bind_node(self, name: str, actual: str, cards: Sequence[str]) -> None:
        """Say which node of the cluster this is, with its cards by index."""
        self._nodes[name] = actual
        self._cards[name] = list(cards)

    def node(self, name: str) -> str:
        """The node's name in the cluster."""
        return self._nodes[name]

    def cards(self, node: str) -> list[str]:
        """Ids of a node's cards, by index; none for a node of someone else."""
        return self._cards.get(node, [])

    def fill(self, text: str) -> str:
        """The text with `{n1}`, `{n1/0}` and `{n1/0/3}`, the MIG device of instance 3, replaced."""

        def found(match: re.Match[str]) -> str:
            name, card, instance = match.groups()
            if name not in self._nodes:
                return match.group()
            if not card:
                return self._nodes[name]
            uuid = self._cards[name][int(card)]
            return mig_uuid(uuid, int(instance), 0) if instance else uuid

        return PLACEHOLDER.sub(found, text)

    def shorten(self, text: str) -> str:
        """The text with names of the cluster replaced by those of the scenario."""
        for name, cards in self._cards.items():
            for index, card in enumerate(cards):
                for instance in range(MOST_MIG_INSTANCES) if "MIG-" in text else ():
                    text = text.replace(mig_uuid(card, instance, 0), f"{{{name}/{index}/{instance}}}")
                text = text.replace(card, f"{{{name}/{index}}}")
        for name, actual in sorted(self._nodes.items(), key=lambda pair: -len(pair[1])):
            text = text.replace(actual, f"{{{name}}}")
        return text

    def short_node(self, actual: str) -> str:
        """The scenario's name of a node; the name itself where it is none of the scenario's."""
        return next((name for name, known in self._nodes.items() if known == actual), actual)


def register(cards: Sequence[Card], ids: Sequence[str], form: str) -> str:
    """The register annotation in the form of a release (spec/scheduler.md 2.5): zero values are left out of JSON."""
    if form != "json":
        return "".join(_text_record(index, card, ids[index], form) for index, card in enumerate(cards))
    entries = []
    for index, card in enumerate(cards):
        entry = {"id": ids[index], "index": index, "count": card.slots, "devmem": card.memory, "devcore": card.cores}
        entry |= {"type": card.model, "numa": card.numa, "mode": card.mode, "migProfiles": card.mig}
        entry |= {"health": card.healthy}
        entries.append({key: value for key, value in entry.items() if value})
    return json.dumps(entries, separators=(",", ":"))


def _text_record(index: int, card: Card, card_id: str, form: str) -> str:
    fields = [card_id, card.slots, card.memory, card.cores, card.model, card.numa, str(card.healthy).lower()]
    fields += [index, card.mode] if form == "csv9" else []
    return ",".join(map(str, fields)) + ":"


def handshake() -> str:
    """A device plugin's sign of life, in the form that upstream's plugins write."""
    now = datetime.datetime.now(datetime.UTC)
    return f"Reported {now:%Y-%m-%d %H:%M:%S.%f}000 +0000 UTC m=+1.0"


def node_object(names: Names, name: str, node: Node) -> Object:
    """A Ready node of which only the API object exists."""
    text = names.fill(node.register) or register(node.cards, names.cards(name), node.form)
    annotations = {REGISTER: text, HANDSHAKE: handshake()}
    annotations |= {key: names.fill(value) for key, value in node.annotations.items()}
    made = _ready_node(names.node(name), sum(card.slots for card in node.cards) or 1, annotations)
    made["metadata"]["labels"] |= {LABEL: names.namespace, **node.labels}
    made["spec"] = {"unschedulable": True} if node.unschedulable else {}
    return made


def marker_node(name: str) -> Object:
    """A node of one card that no pod of a scenario may go to: who knows it has seen every node before it."""
    annotations = {REGISTER: register([Card()], [f"GPU-{name}"], "json"), HANDSHAKE: handshake()}
    return _ready_node(name, Card().slots, annotations)


def marker_pod(name: str, node: str) -> Object:
    """A pod that holds a share of that node's card."""
    annotations = {ALLOCATED: f"GPU-{node},NVIDIA,1,0:;", TO_ALLOCATE: ";", BIND_PHASE: "success", CHOSEN_NODE: node}
    spec = {"nodeName": node, "containers": [{"name": "c", "image": IMAGE}]}
    return {"metadata": {"name": name, "annotations": annotations, "labels": NO_WEBHOOK}, "spec": spec}


def _ready_node(name: str, shares: int, annotations: Mapping[str, str]) -> Object:
    room = {"cpu": "32", "memory": "256Gi", "pods": "110", f"{VENDOR}/gpu": str(shares)}
    labels = {"kubernetes.io/hostname": name, "gpu": "on"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": dict(annotations)},
        "status": {
            "capacity": room,
            "allocatable": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def probe_pod(name: str, scheduler: str, where: Mapping[str, str]) -> Object:
    """A pod that asks for nothing, takes every taint and may be on nodes with these labels only."""
    spec = {"schedulerName": scheduler, "nodeSelector": dict(where), "tolerations": [{"operator": "Exists"}]}
    containers = [{"name": "c", "image": IMAGE}]
    return {"metadata": {"name": name, "labels": NO_WEBHOOK}, "spec": {**spec, "containers": containers}}


def resource_quota(hard: Mapping[str, int]) -> Object:
    """Limits that HAMi evaluates, in an ordinary ResourceQuota (spec/contract.md 3.1)."""
    whole = {f"limits.{VENDOR}/{key}": str(value) for key, value in hard.items()}
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "shares"}, "spec": {"hard": whole}}


def new_pod(names: Names, pod: NewPod, suffix: str = "") -> Object:
    """The pod as its user posts it."""
    first: Object = {"env": [{"name": key, "value": value} for key, value in pod.env.items()]}
    if pod.privileged:
        first["securityContext"] = {"privileged": True}
    containers = [_container(f"c{index}", limits) for index, limits in enumerate(pod.containers)]
    containers[0] |= first
    before = [
        _container(f"s{index}", limits) | {"restartPolicy": "Always"} for index, limits in enumerate(pod.sidecars)
    ]
    before += [_container(f"i{index}", limits) for index, limits in enumerate(pod.init)]
    spec: Object = {
        "terminationGracePeriodSeconds": 30,
        "containers": containers,
        "initContainers": before,
        "nodeSelector": {LABEL: names.namespace},
    }
    if pod.scheduler:
        spec["schedulerName"] = pod.scheduler
    if pod.node_name:
        spec["nodeName"] = names.node(pod.node_name)
    annotations = {key: names.fill(value) for key, value in pod.annotations.items()}
    metadata = {"name": pod.name + suffix, "annotations": annotations, "labels": dict(pod.labels)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _container(name: str, limits: Limits) -> Object:
    whole = {key if "/" in key or key == "cpu" else f"{VENDOR}/{key}": str(value) for key, value in limits.items()}
    return {"name": name, "image": IMAGE, "resources": {"limits": whole} if whole else {}}


def present_pod(names: Names, name: str, pod: Present) -> Object:
    """A pod that HAMi has placed before: it goes around the webhook, which would take its annotations for forged."""
    parts = len(pod.shares) if pod.shares is not None else pod.init + 1
    containers = [{"name": f"c{index}", "image": IMAGE} for index in range(parts)]
    annotations = {key: names.fill(value) for key, value in pod.annotations.items()}
    text = names.fill(pod.allocated) or (allocation(names, pod) if pod.shares is not None else "")
    if text:
        annotations |= {ALLOCATED: text, TO_ALLOCATE: ";" * parts, BIND_PHASE: "success"}
        annotations |= {CHOSEN_NODE: names.node(pod.node), "hami.io/vgpu-time": "1700000000"}
    if pod.slices:
        annotations[SLICES] = names.fill(pod.slices)
    spec: Object = {"initContainers": containers[: pod.init], "containers": containers[pod.init :]}
    spec |= {"nodeName": names.node(pod.node)} if pod.node else {"schedulerName": "nobody"}
    metadata = {"name": name, "annotations": annotations, "labels": {**NO_WEBHOOK, **pod.labels}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def allocation(names: Names, pod: Present) -> str:
    """The allocated annotation of given shares (spec/scheduler.md 2.3)."""
    cards = names.cards(pod.node) if pod.node else []
    return "".join(
        "".join(f"{cards[one.card]}{pod.id_suffix},NVIDIA,{one.memory},{one.cores}:" for one in part) + ";"
        for part in pod.shares or []
    )


def read_allocation(text: str, cards: Sequence[str]) -> list[list[Share]]:
    """Shares by container, read strictly; a card that is not the node's is -1."""
    assert text.endswith(";"), text
    parts = []
    for segment in text[:-1].split(";"):
        pieces = [piece.split(",") for piece in segment.split(":")[:-1]]
        index = {card: number for number, card in enumerate(cards)}
        parts.append([Share(index.get(card, -1), int(memory), int(cores)) for card, _, memory, cores in pieces])
    return parts


def ended_init_containers(pod: Mapping[str, Any]) -> Object:
    """Status in which every init container has ended with code 0."""
    statuses = [
        {
            "name": one["name"],
            "image": IMAGE,
            "imageID": "",
            "ready": True,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed"}},
        }
        for one in pod["spec"].get("initContainers") or []
    ]
    return {"initContainerStatuses": statuses}
