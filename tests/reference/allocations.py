"""Pod objects -> what is used: decoding (2.3, 2.4), accounting of init containers and sidecars (4.10), usage (6.3)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from tests.reference.model import Grant, MigSlice, Node, Object
from tests.reference.objects import notes_of

NODE_KEY = "hami.io/vgpu-node"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
ALLOCATED = "hami.io/vgpu-devices-allocated"
MIG_KEY = "hami.io/vgpu-mig-allocations"
DEVICE_WORD = "NVIDIA"
_OLD_MIG_SUFFIX = re.compile(r"\[[^\]]*\]$")


class UndecodableError(ValueError):
    """The allocation text of a pod cannot be read."""


@dataclass(slots=True)
class Used:
    """What one pod holds of one card."""

    slots: int = 0
    mem: int = 0
    cores: int = 0
    slices: list[tuple[int, int]] = field(default_factory=list)


def encode(containers: list[list[Grant]]) -> str:
    """One segment per container, each ending with `;`."""
    return "".join("".join(f"{g.uuid},{DEVICE_WORD},{g.mem},{g.cores}:" for g in grants) + ";" for grants in containers)


def encode_mig(containers: list[list[Grant]]) -> str:
    """JSON of 2.4, or an empty text where no MIG slice is held."""
    entries = [
        {
            "containerIndex": i,
            "deviceIndex": j,
            "gpuUUID": grant.uuid,
            "profile": grant.mig.profile,
            "placement": {"start": grant.mig.start, "size": grant.mig.size},
        }
        for i, grants in enumerate(containers)
        for j, grant in enumerate(grants)
        if grant.mig is not None
    ]
    return json.dumps(entries, separators=(",", ":")) if entries else ""


def decode(text: str) -> list[list[Grant]]:
    """Segments in order; the empty piece after the last `;` is no segment.

    Raises:
        UndecodableError: a device without four fields, or with a number that is none or negative.
    """
    segments = text.split(";")
    if segments[-1] == "":
        segments.pop()
    return [[_device(piece) for piece in segment.split(":") if piece] for segment in segments]


def _device(piece: str) -> Grant:
    fields = piece.split(",")
    if len(fields) < 4 or not (fields[2].isdecimal() and fields[3].isdecimal()):
        raise UndecodableError(piece)
    return Grant(_OLD_MIG_SUFFIX.sub("", fields[0]), int(fields[2]), int(fields[3]))


def decode_mig(text: str) -> dict[tuple[int, int], tuple[str, MigSlice]]:
    """(container, device) -> (card, slice). Any fault empties the whole annotation (2.4)."""
    found: dict[tuple[int, int], tuple[str, MigSlice]] = {}
    try:
        for item in json.loads(text or "[]"):
            key = (int(item["containerIndex"]), int(item["deviceIndex"]))
            place = item["placement"]
            mig = MigSlice(str(item["profile"]), int(place["start"]), int(place["size"]))
            identity = [field_ in item for field_ in ("migUUID", "gpuInstanceID", "computeInstanceID")]
            if key in found or mig.size <= 0 or any(identity) != all(identity):
                return {}
            found[key] = (str(item["gpuUUID"]), mig)
    except (ValueError, KeyError, TypeError):
        return {}
    return found


def collapse(containers: list[tuple[str, list[Grant]]], init_done: bool = False) -> dict[str, Used]:
    """Effective use by card: sum(sidecars) + max(peak of init containers, sum of app containers).

    Args:
        containers: (role, grants) of every container.
        init_done: ordinary init containers have ended well: only their MIG slices count on (6.3: all are attached).
    """
    parts: dict[str, dict[str, Used]] = {"init": {}, "app": {}, "sidecar": {}}
    slices: dict[str, list[tuple[int, int]]] = {}
    for role, grants in containers:
        own: dict[str, Used] = {}
        for grant in grants:
            if grant.mig is not None:
                slices.setdefault(grant.uuid, []).append((grant.mig.start, grant.mig.size))
            if role != "init" or not init_done:
                _add(own.setdefault(grant.uuid, Used()), grant)
        for uuid, used in own.items():
            _merge(parts[role].setdefault(uuid, Used()), used, peak=role == "init")
    total: dict[str, Used] = {}
    for uuid in {*parts["init"], *parts["app"], *parts["sidecar"], *slices}:
        app, init, side = (parts[role].get(uuid, Used()) for role in ("app", "init", "sidecar"))
        total[uuid] = Used(
            side.slots + max(app.slots, init.slots),
            side.mem + max(app.mem, init.mem),
            side.cores + max(app.cores, init.cores),
            slices.get(uuid, []),
        )
    return total


def _add(used: Used, grant: Grant) -> None:
    used.slots += 1
    used.mem += grant.mem
    used.cores += grant.cores


def _merge(into: Used, used: Used, peak: bool) -> None:
    if peak:
        into.slots = max(into.slots, used.slots)
        into.mem = max(into.mem, used.mem)
        into.cores = max(into.cores, used.cores)
    else:
        into.slots += used.slots
        into.mem += used.mem
        into.cores += used.cores


def node_of(pod: Object) -> str:
    """The node on which the pod's allocation counts; empty if it holds none."""
    if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return ""
    return notes_of(pod).get(NODE_KEY, "")


def held_by(pod: Object) -> dict[str, Used]:
    """Collapsed use of a pod by card.

    Raises:
        UndecodableError: its allocation cannot be read.
    """
    notes = notes_of(pod)
    segments = decode(notes.get(ALLOCATED, ""))
    migs = decode_mig(notes.get(MIG_KEY, ""))
    for (i, j), (uuid, mig) in migs.items():
        if i < len(segments) and j < len(segments[i]) and segments[i][j].uuid == uuid:
            old = segments[i][j]
            segments[i][j] = Grant(old.uuid, old.mem, old.cores, mig)
    return collapse(list(zip(_roles(pod, len(segments)), segments, strict=True)), _init_done(pod))


def _roles(pod: Object, segments: int) -> list[str]:
    """Roles by segment. A list of another length than the pod's containers is of an older release: all count as app."""
    spec = pod.get("spec", {})
    roles = ["sidecar" if c.get("restartPolicy") == "Always" else "init" for c in spec.get("initContainers") or ()]
    roles += ["app"] * len(spec.get("containers") or ())
    return roles if len(roles) == segments else ["app"] * segments


def _init_done(pod: Object) -> bool:
    ordinary = [
        c["name"] for c in pod.get("spec", {}).get("initContainers") or () if c.get("restartPolicy") != "Always"
    ]
    states = {s["name"]: s.get("state") or {} for s in pod.get("status", {}).get("initContainerStatuses") or ()}
    ended = [states.get(name, {}).get("terminated") for name in ordinary]
    return bool(ordinary) and all(end is not None and end.get("exitCode", 0) == 0 for end in ended)


def apply_pods(nodes: dict[str, Node], pods: list[Object]) -> None:
    """Charge every pod's allocation to its node (6.3); what cannot be read blocks that node (design 5)."""
    for pod in pods:
        node = nodes.get(node_of(pod))
        if node is None:
            continue
        try:
            held = held_by(pod)
        except UndecodableError:
            node.blocked = node.blocked or bool(pod.get("spec", {}).get("nodeName"))
            continue
        for uuid, used in held.items():
            _charge(node, uuid, used)


def _charge(node: Node, uuid: str, used: Used) -> None:
    for card in node.cards:
        if card.uuid != uuid:
            continue
        card.charge(used.mem, used.cores, used.slots)
        card.taken_slices += used.slices
        if card.is_mig != bool(used.slices):
            card.healthy = False
        return
