"""What became of a pod that has a node: its cards, its phase, and whose turn it is on that node."""

from __future__ import annotations

import msgspec

from hami.core import keys
from hami.core.allocation import read_allocation
from hami.core.device_type import Registry
from hami.core.errors import DecodeError
from hami.core.model import Device
from hami.core.objects import Node, Pod
from hami.core.token import parse_token


class Held(msgspec.Struct, frozen=True):
    """One card of one container; `index` and `type` as registered, -1 and empty if the node does not register it."""

    container: str
    device_id: str
    index: int
    type: str
    memory_mib: int
    core_percent: int


class Story(msgspec.Struct, frozen=True):
    """`phase`: HAMi's bind phase; `token`: who may be handed cards on the node now, in words."""

    pod: str
    node: str
    status: str
    phase: str
    bound_at_unix_s: int
    cards: tuple[Held, ...]
    token: str
    problem: str = ""


def story_of(pod: Pod, node: Node | None, registry: Registry, devices: tuple[Device, ...]) -> Story:
    """The story of a bound pod from its own annotations and its node's."""
    by_id = {device.id: device for device in devices}
    cards: list[Held] = []
    problem = ""
    try:
        allocation = read_allocation(pod.annotations, registry, f"pod {pod.key}")
    except DecodeError as error:
        allocation, problem = {}, str(error)
    for containers in allocation.values():
        for position, shares in enumerate(containers):
            name = pod.containers[position].name if position < len(pod.containers) else f"container {position}"
            for share in shares:
                card = by_id.get(share.device_id)
                index, model = (card.index, card.type) if card is not None else (-1, "")
                cards.append(Held(name, share.device_id, index, model, share.memory_mib, share.core_percent))
    stamp = pod.annotations.get(keys.BIND_TIME, "")
    return Story(
        pod=pod.key,
        node=pod.spec.node_name,
        status=pod.status.phase or "Pending",
        phase=pod.annotations.get(keys.BIND_PHASE, ""),
        bound_at_unix_s=int(stamp) if stamp.isdecimal() and len(stamp) <= 12 else 0,
        cards=tuple(cards),
        token=_token_words(pod, node),
        problem=problem,
    )


def _token_words(pod: Pod, node: Node | None) -> str:
    if node is None:
        return "the node does not exist"
    text = node.annotations.get(keys.NODE_LOCK, "")
    if not text:
        return "free"
    try:
        owner = parse_token(text).key
    except DecodeError as error:
        return f"unreadable: {error}"
    if owner == pod.key:
        return "held by this pod: its device plugin has not handed over the cards yet"
    return f"held by {owner or 'a pod that an old release does not name'}"
