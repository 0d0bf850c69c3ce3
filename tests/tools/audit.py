#!/usr/bin/env python3
"""Judge a cluster from its API objects alone: is any card given to more pods than it has room for?

    tests/tools/audit.py --kubeconfig FILE [--quiet]

Prints each registered card with its pods; exits 1 if memory, cores or slots of any card are exceeded, if an exclusive
card is shared, if a pod holds a card that its node does not register, or if an annotation cannot be read.
It imports nothing from hami: the judge must not share the fault of the judged. Needs Python and PyYAML.

Sources: node registers and their three written forms, spec/scheduler.md 2.5; allocation lists, 2.3; what a pod with
init containers holds, 4.10; sidecars as Kubernetes accounts them (those started before an init container run beside
it); a finished or failed pod holds nothing.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import json
import ssl
import sys
import tempfile
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

Object = Mapping[str, Any]
Key = tuple[str, str]  # node name, card id

ALLOCATED_SUFFIXES = ("-devices-allocated", "/kunlun-allocated")
CHOSEN_NODE = "hami.io/vgpu-node"
MIN_ALLOCATION_FIELDS = 4
REGISTER_FIELDS = (7, 9)
WHOLE_CARD_CORES = 100


class UnreadableError(Exception):
    """An annotation does not follow its grammar."""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Room taken on one card: sharing slots, MiB of memory, percent of cores."""

    slots: int = 0
    memory_mib: int = 0
    cores: int = 0

    def plus(self, other: Use) -> Use:
        """Both at the same time."""
        return Use(self.slots + other.slots, self.memory_mib + other.memory_mib, self.cores + other.cores)

    def peak(self, other: Use) -> Use:
        """One after the other: the larger of each."""
        return Use(max(self.slots, other.slots), max(self.memory_mib, other.memory_mib), max(self.cores, other.cores))


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """What a node registered for one card."""

    index: int
    model: str
    room: Use
    healthy: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """One pod's hold on one card."""

    pod: str
    use: Use
    bound: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found: cards, who holds them, and what is wrong."""

    cards: Mapping[Key, Card]
    holders: Mapping[Key, list[Holder]]
    faults: list[str]

    def text(self) -> str:
        """The report for people: a line for each card, its pods indented, faults last."""
        lines = []
        for key in sorted(self.cards, key=lambda key: (key[0], self.cards[key].index, key[1])):
            card, held = self.cards[key], self.holders.get(key, [])
            used = _total(holder.use for holder in held)
            state = "" if card.healthy else "  UNHEALTHY"
            lines.append(
                f"{key[0]} {card.index} {key[1]} {card.model}: slots {used.slots}/{card.room.slots}, "
                f"memory {used.memory_mib}/{card.room.memory_mib} MiB, cores {used.cores}/{card.room.cores}{state}"
            )
            lines.extend(
                f"    {holder.pod}: {holder.use.slots} slots, {holder.use.memory_mib} MiB, {holder.use.cores} cores"
                f"{'' if holder.bound else ' (reserved, not bound)'}"
                for holder in sorted(held, key=lambda holder: holder.pod)
            )
        lines.extend(f"FAULT {fault}" for fault in self.faults)
        holds = sum(len(held) for held in self.holders.values())
        lines.append(f"{len(self.cards)} cards, {holds} holds, {len(self.faults)} faults")
        return "\n".join(lines)


def audit(nodes: Iterable[Object], pods: Iterable[Object]) -> Report:
    """Judge Node and Pod objects as kube-apiserver lists them."""
    faults: list[str] = []
    cards: dict[Key, Card] = {}
    for node in nodes:
        name = node["metadata"]["name"]
        for key, value in (node["metadata"].get("annotations") or {}).items():
            if key.startswith("hami.io/node-") and "register" in key:
                try:
                    cards.update({(name, uuid): card for uuid, card in read_register(value)})
                except UnreadableError as error:
                    faults.append(f"node {name}: {key}: {error}")
    holders: dict[Key, list[Holder]] = {}
    for pod in pods:
        try:
            for key, holder in pod_holds(pod):
                holders.setdefault(key, []).append(holder)
        except UnreadableError as error:
            faults.append(f"pod {_pod_name(pod)}: {error}")
    for key in sorted(holders):
        faults.extend(_card_faults(key, cards.get(key), holders[key]))
    return Report(cards, holders, faults)


def read_register(text: str) -> list[tuple[str, Card]]:
    """Cards in a node's register annotation: JSON, or text of seven or nine fields a card."""
    try:
        if text.lstrip().startswith("["):
            return [_card_of_json(entry) for entry in json.loads(text)]
        return [_card_of_fields(piece.split(",")) for piece in text.split(":") if piece]
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableError(f"register cannot be read: {error!r}") from error


def _card_of_json(entry: Mapping[str, Any]) -> tuple[str, Card]:
    room = Use(entry.get("count", 0), entry.get("devmem", 0), entry.get("devcore", 0))
    return entry["id"], Card(entry.get("index", 0), entry.get("type", ""), room, entry.get("health", False))


def _card_of_fields(fields: list[str]) -> tuple[str, Card]:
    if len(fields) not in REGISTER_FIELDS:
        raise ValueError(f"{len(fields)} fields")
    room = Use(int(fields[1]), int(fields[2]), int(fields[3]))
    index = int(fields[7]) if len(fields) == REGISTER_FIELDS[1] else 0
    return fields[0], Card(index, fields[4], room, fields[6] == "true")


def pod_holds(pod: Object) -> Iterable[tuple[Key, Holder]]:
    """What a pod holds: nothing once it ended; else, for each card, its largest use at any moment."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return
    annotations = pod["metadata"].get("annotations") or {}
    node = pod["spec"].get("nodeName") or annotations.get(CHOSEN_NODE)
    if not node:
        return
    for key, value in annotations.items():
        if key.startswith("hami.io/") and key.endswith(ALLOCATED_SUFFIXES):
            for uuid, use in _effective(pod, read_allocation(value)).items():
                yield (node, uuid), Holder(_pod_name(pod), use, bool(pod["spec"].get("nodeName")))


def read_allocation(text: str) -> list[dict[str, Use]]:
    """One dictionary (card to use) for each container segment; the text ends each segment with `;`."""
    segments = text.split(";")
    if segments and not segments[-1]:
        segments.pop()
    return [_segment(segment) for segment in segments]


def _segment(text: str) -> dict[str, Use]:
    uses: dict[str, Use] = {}
    for piece in text.split(":"):
        if "," not in piece:
            continue
        fields = piece.split(",")
        if len(fields) < MIN_ALLOCATION_FIELDS:
            raise UnreadableError(f"allocation {piece!r} has {len(fields)} fields")
        try:
            use = Use(1, int(fields[2]), int(fields[3]))
        except ValueError as error:
            raise UnreadableError(f"allocation {piece!r}: {error}") from error
        if fields[0]:  # v2.4.1 wrote `,,0,0:` for a container without cards
            uses[fields[0]] = uses.get(fields[0], Use()).plus(use)
    return uses


def _effective(pod: Object, segments: list[dict[str, Use]]) -> dict[str, Use]:
    """The pod's largest use of each card at any moment of its life that is still to come."""
    init = pod["spec"].get("initContainers") or []
    apps = pod["spec"].get("containers") or []
    if len(segments) < len(init) + len(apps):
        segments = [{} for _ in init] + segments  # releases before 2.9 list app containers only
    running_sidecars: list[dict[str, Use]] = []
    phases: list[list[dict[str, Use]]] = []
    for container, uses in zip(init, segments, strict=False):
        if container.get("restartPolicy") == "Always":
            running_sidecars.append(uses)
            phases.append([*running_sidecars])
        else:
            phases.append([*running_sidecars, uses])
    if _init_finished(pod, init):
        phases = []
    phases.append([*running_sidecars, *segments[len(init) :]])
    effective: dict[str, Use] = {}
    for phase in phases:
        for uuid in {uuid for uses in phase for uuid in uses}:
            at_once = _total(uses[uuid] for uses in phase if uuid in uses)
            effective[uuid] = effective.get(uuid, Use()).peak(at_once)
    return effective


def _init_finished(pod: Object, init: list[Object]) -> bool:
    """True when every init container that ends has ended well: their cards are free for others."""
    ending = {container["name"] for container in init if container.get("restartPolicy") != "Always"}
    statuses = pod.get("status", {}).get("initContainerStatuses") or []
    ended = {
        status["name"]
        for status in statuses
        if (status.get("state", {}).get("terminated") or {}).get("exitCode", 1) == 0
    }
    return bool(ending) and ending <= ended


def _card_faults(key: Key, card: Card | None, held: list[Holder]) -> Iterable[str]:
    where = f"{key[0]} {key[1]}"
    names = ", ".join(sorted(holder.pod for holder in held))
    if card is None:
        yield f"{where}: held by {names} but not registered"
        return
    used = _total(holder.use for holder in held)
    for what in ("slots", "memory_mib", "cores"):
        given, room = getattr(used, what), getattr(card.room, what)
        if given > room:
            yield f"{where}: {what} {given} of {room}, held by {names}"
    if card.room.cores == WHOLE_CARD_CORES and len(held) > 1:
        owners = [holder.pod for holder in held if holder.use.cores >= WHOLE_CARD_CORES]
        if owners:
            yield f"{where}: exclusive to {', '.join(owners)} but held by {names}"


def _total(uses: Iterable[Use]) -> Use:
    total = Use()
    for use in uses:
        total = total.plus(use)
    return total


def _pod_name(pod: Object) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


class Client:
    """GET with the identity of a kubeconfig: client certificate or token, inline or as files."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        self._server = cluster["server"].rstrip("/")
        self._token = user.get("token")
        authority = _pem(cluster, "certificate-authority", kubeconfig.parent)
        self._tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        certificate = _pem(user, "client-certificate", kubeconfig.parent)
        key = _pem(user, "client-key", kubeconfig.parent)
        if certificate and key:
            with tempfile.NamedTemporaryFile() as file:  # ssl reads certificates from files only
                file.write(certificate + b"\n" + key)
                file.flush()
                self._tls.load_cert_chain(file.name)

    def items(self, path: str) -> list[Object]:
        """All items of a collection."""
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._server + path, headers=headers)
        with urllib.request.urlopen(request, timeout=120, context=self._tls) as response:
            found: list[Object] = json.load(response)["items"]
        return found


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def _pem(section: Mapping[str, Any], key: str, folder: Path) -> bytes | None:
    if f"{key}-data" in section:
        return base64.b64decode(section[f"{key}-data"])
    return (folder / section[key]).read_bytes() if key in section else None


def audit_cluster(kubeconfig: Path) -> Report:
    """Judge a live cluster. Pods are read last, so that no pod refers to a node that was not read."""
    client = Client(kubeconfig)
    nodes = client.items("/api/v1/nodes")
    return audit(nodes, client.items("/api/v1/pods"))


def main() -> int:
    """Command line; exit code 1 when anything is wrong."""
    parser = argparse.ArgumentParser(description="Is any GPU given to more pods than it has room for?")
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--quiet", action="store_true", help="print faults and the summary only")
    options = parser.parse_args()
    report = audit_cluster(options.kubeconfig)
    text = report.text()
    if options.quiet:
        text = "\n".join([*(f"FAULT {fault}" for fault in report.faults), text.splitlines()[-1]])
    print(text)
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
