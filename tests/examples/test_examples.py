"""examples/: the webhook takes the pods, their sums are right, and as many as said fit a card, no more."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from hami.sim.profiles import FOLDER as PROFILES
from tests.examples.example_pods import CARDS, EXAMPLES, FILES, MEMORY, admitted, pods_of
from tests.placement.fakes import card, make_node, make_world

SUM_LINE: Final = re.compile(r"^# {3,}(\d+)  (.+)$", re.M)


def one_card(profile: str) -> World:
    kind = yaml.safe_load((PROFILES / f"{profile}.yaml").read_text())["cards"][0]
    world = make_world()
    world.on_node(make_node("n1", [card(0, memory_mib=kind["memory_mib"], type=kind["model"])]))
    return world


def test_every_example_is_counted_for_a_card() -> None:
    assert {file.name for file in FILES} == set(CARDS)
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"`{file.name}`" in listed for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_memory_adds_up_to_what_is_asked_for(file: Path) -> None:
    sums = 0
    for document, body in pods_of(file.read_text()):
        *parts, total = [int(amount) for amount, _ in SUM_LINE.findall(document)]
        asked = [each["resources"].get("limits", {}).get(MEMORY, 0) for each in body["spec"]["containers"]]
        assert sum(parts) == total == sum(asked)
        sums += 1
    assert sums


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_share_for_vllm_leaves_what_is_said(file: Path) -> None:
    """What --gpu-memory-utilization leaves of gpumem is the line of the sum that says so."""
    for document, body in pods_of(file.read_text()):
        for each in body["spec"]["containers"]:
            fractions = re.findall(r"--gpu-memory-utilization=([\d.]+)", " ".join(each.get("args", [])))
            for fraction in fractions:
                left = next(int(amount) for amount, what in SUM_LINE.findall(document) if what.startswith("left by"))
                assert each["resources"]["limits"][MEMORY] * (1 - float(fraction)) == pytest.approx(left, abs=2)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.name)
def test_pods_of_a_file_share_one_card_and_one_more_does_not_fit(file: Path) -> None:
    profile, expected = CARDS[file.name]
    world = one_card(profile)
    engine = Engine(world)
    bodies = [body for _, body in pods_of(file.read_text())]
    for body in bodies:
        answer = engine.filter(admitted(body), NodeNames.of(["n1"]))
        assert answer.node == "n1", answer.failed
    assert len(bodies) == expected
    largest = max(bodies, key=lambda body: body["spec"]["containers"][0]["resources"]["limits"][MEMORY])
    metadata = largest["metadata"] | {"name": "more", "uid": "more"}
    refused = engine.filter(admitted(largest | {"metadata": metadata}), NodeNames.of(["n1"]))
    assert refused.node is None
    assert "n1" in refused.failed
