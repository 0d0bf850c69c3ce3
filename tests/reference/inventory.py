"""Node object -> cards: the three forms of `hami.io/node-nvidia-register` ever written (2.5), cordon, pair scores."""

from __future__ import annotations

import json
from typing import Any

from tests.reference.model import Card, Node, Object, Profile
from tests.reference.objects import name_of, notes_of, words

REGISTER = "hami.io/node-nvidia-register"
PAIR_SCORES = "hami.io/node-nvidia-score"
CORDON = "hami.io/device-cordon"
INT32_MAX = 2**31 - 1
_BOOLS = {"1": True, "t": True, "T": True, "TRUE": True, "true": True, "True": True}
_BOOLS |= {"0": False, "f": False, "F": False, "FALSE": False, "false": False, "False": False}


def read_node(node: Object) -> Node | None:
    """The node as registered, with nothing used; None if it is not registered (absent, unreadable or no card)."""
    notes = notes_of(node)
    try:
        cards = _decode(notes[REGISTER])
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
    if not cards:
        return None
    cordoned = set(words(notes.get(CORDON, "")))
    for card in cards:
        card.cordoned = card.uuid in cordoned
    return Node(name_of(node), cards, _pair_scores(notes.get(PAIR_SCORES, "")))


def _decode(text: str) -> list[Card]:
    if text.lstrip().startswith("["):
        return [_from_json(item, position) for position, item in enumerate(json.loads(text))]
    if ":" not in text:
        raise ValueError("no device separator")
    pieces = [piece for piece in text.split(":") if piece]
    return [_from_csv(piece.split(","), position) for position, piece in enumerate(pieces)]


def _from_csv(fields: list[str], position: int) -> Card:
    if len(fields) not in (7, 9):
        raise ValueError("fields")
    index, mode = (_int(fields[7]), fields[8]) if len(fields) == 9 else (0, "hami-core")
    return Card(
        uuid=fields[0],
        index=index,
        position=position,
        count=_int(fields[1]),
        total_mem=_int(fields[2]),
        total_cores=_int(fields[3]),
        type=fields[4],
        numa=int(fields[5]),
        mode=mode,
        healthy=_BOOLS[fields[6]],
    )


def _from_json(item: dict[str, Any], position: int) -> Card:
    """Missing keys are zero values: index 0, numa 0, health false."""
    return Card(
        uuid=str(item["id"]),
        index=_int(item.get("index", 0)),
        position=position,
        count=_int(item.get("count", 0)),
        total_mem=_int(item.get("devmem", 0)),
        total_cores=_int(item.get("devcore", 0)),
        type=str(item.get("type", "")),
        numa=int(item.get("numa", 0)),
        mode=str(item.get("mode", "")),
        healthy=bool(item.get("health", False)),
        profiles=tuple(_profile(entry) for entry in item.get("migProfiles") or ()),
    )


def _profile(item: dict[str, Any]) -> Profile:
    places = tuple((int(place.get("start", 0)), int(place["size"])) for place in item.get("placements") or ())
    return Profile(
        str(item["name"]),
        int(item.get("memoryMB", 0)),
        int(item.get("core", 0)),
        int(item.get("sliceCount", 0)),
        places,
    )


def _int(value: object) -> int:
    """Numbers of a register; outside 0..int32 the register is refused (design 6)."""
    number = int(str(value))
    if not 0 <= number <= INT32_MAX:
        raise ValueError("out of range")
    return number


def _pair_scores(text: str) -> dict[str, dict[str, int]]:
    """Unreadable pair scores are no pair scores: each missing pair counts 0 (4.6)."""
    try:
        return {item["uuid"]: dict(item.get("score") or {}) for item in json.loads(text)} if text else {}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
