"""Nodes to choose among, and a pod's wish to be spread."""

from __future__ import annotations

from hami.placement.names import NodeNames
from hami.placement.world import World
from tests.placement.fakes import (
    make_node,
)

SPREAD = {"hami.io/node-scheduler-policy": "spread"}


def names(*given: str) -> NodeNames:
    return NodeNames.of(given)


def add(world: World, *given: str, cards: int = 2) -> NodeNames:
    for name in given:
        world.on_node(make_node(name, cards))
    return names(*given)
