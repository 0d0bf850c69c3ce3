"""Nodes whose token does not come free come last until it is off (issue 6, "no failed binds")."""

from __future__ import annotations

import pytest

from hami.placement.engine import Engine, NodeNames
from tests.placement.fakes import FakeClock, annotated, container, make_node, make_pod, make_world


@pytest.mark.parametrize("heartbeats", [1, 5])
def test_a_node_whose_token_did_not_come_free_is_last_until_the_token_is_off(heartbeats: int) -> None:
    world = make_world(FakeClock())
    engine = Engine(world)
    lock = "2027-01-15T08:00:00Z,default,owner"
    world.on_node(make_node("n1", lock=lock))
    world.on_node(make_node("n2"))
    world.on_pod(annotated(make_pod("old"), "n1", "GPU-0,NVIDIA,1000,10:;"))  # binpack prefers n1
    world.stalled.gave_up("n1")
    for number in range(heartbeats):
        world.on_node(make_node("n1", lock=lock, version=2 + number))
        world.on_node(make_node("n2", version=2 + number))
        assert engine.filter(make_pod("a", container(1, 100)), NodeNames.of(["n1", "n2"])).node == "n2"
    # Another pod's token in its place: that one was not served either so far.
    world.on_node(make_node("n1", lock=lock.replace("owner", "next"), version=20))
    assert engine.filter(make_pod("a", container(1, 100)), NodeNames.of(["n1", "n2"])).node == "n2"
    world.on_node(make_node("n1", version=21))
    assert engine.filter(make_pod("a", container(1, 100)), NodeNames.of(["n1", "n2"])).node == "n1"
