"""A binder over a small world, its API server and its clock."""

from __future__ import annotations

import pytest

from hami.placement.engine import Engine
from hami.placement.world import World
from tests.placement.bind_setup import Setup
from tests.placement.fakes import (
    FakeClock,
    make_node,
    make_world,
)


@pytest.fixture
def setup() -> Setup:
    return Setup()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def world(clock: FakeClock) -> World:
    """Nodes n1 and n2 with a card each."""
    world = make_world(clock)
    world.on_node(make_node("n1"))
    world.on_node(make_node("n2"))
    return world


@pytest.fixture
def engine(world: World) -> Engine:
    return Engine(world)
