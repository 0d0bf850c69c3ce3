"""Columns against the evaluator: they reject only what it rejects, and rank as it scores."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.fit import Fit, evaluate
from hami.core.model import (
    ContainerKind,
    ContainerRequest,
    Device,
    DeviceRequest,
    MigPlacement,
    MigProfile,
    NodeState,
    PodRequest,
    Policies,
    Use,
)
from hami.core.score import node_score
from hami.placement.columns import Columns
from tests.placement.fakes import REGISTRY, card

PROFILES = (
    MigProfile("1g.5gb", 4864, 14, 1, tuple(MigPlacement(start, 1) for start in range(7))),
    MigProfile("3g.20gb", 19968, 42, 3, (MigPlacement(0, 4), MigPlacement(4, 4))),
)


@st.composite
def cards_and_uses(draw: st.DrawFn) -> tuple[list[Device], list[Use], dict[str, tuple[MigPlacement, ...]]]:
    devices, uses = [], []
    taken: dict[str, tuple[MigPlacement, ...]] = {}
    for number in range(draw(st.integers(0, 4))):
        mig = draw(st.integers(0, 3)) == 0
        device = card(
            number,
            slots=draw(st.sampled_from([0, 1, 2, 10])),
            memory_mib=draw(st.sampled_from([0, 4000, 16384, 40960])),
            core_percent=draw(st.sampled_from([0, 100, 100, 100, 200])),
            healthy=draw(st.integers(0, 5)) > 0,
            numa=draw(st.integers(0, 1)),
            mode="mig" if mig else "hami-core",
            mig_profiles=PROFILES if mig else (),
        )
        slots = draw(st.sampled_from([0, 0, 1, device.slots, device.slots + 1]))
        if mig:
            taken[device.id] = tuple(MigPlacement(start, 1) for start in range(min(slots, 7)))
        devices.append(device)
        memory = draw(st.sampled_from([0, 0, 1000, device.memory_mib // 2, device.memory_mib, device.memory_mib + 1]))
        uses.append(Use(slots, memory, draw(st.sampled_from([0, 0, 30, 100, 101]))))
    return devices, uses, taken


@st.composite
def states(draw: st.DrawFn) -> list[NodeState]:
    nodes = []
    for name in draw(st.permutations(["b", "a", "d", "c"]))[: draw(st.integers(1, 4))]:
        devices, uses, taken = draw(cards_and_uses())
        cordoned = frozenset(draw(st.lists(st.sampled_from(["GPU-0", "GPU-1", "GPU-9"]), max_size=1)))
        nodes.append(NodeState(name, tuple(devices), tuple(uses), cordoned, mig_taken=taken))
    return nodes


@st.composite
def requests(draw: st.DrawFn) -> PodRequest:
    containers = []
    for _ in range(draw(st.integers(1, 3))):
        asked = DeviceRequest(
            vendor="NVIDIA",
            count=draw(st.sampled_from([1, 1, 2, 3])),
            memory_mib=draw(st.sampled_from([0, 0, 1000, 4000, 8192, 16384])),
            memory_percent=draw(st.sampled_from([1, 50, 100])),
            core_percent=draw(st.sampled_from([0, 0, 30, 70, 100, 150])),
        )
        kind = draw(st.sampled_from([ContainerKind.APP, ContainerKind.APP, ContainerKind.INIT, ContainerKind.SIDECAR]))
        containers.append(ContainerRequest(kind, (asked,)))
    device = draw(st.sampled_from([("spread",), ("binpack",), ("mutex",), ("numa", "spread"), ("topology-aware",)]))
    return PodRequest(tuple(containers), policies=Policies(device=device))


@settings(max_examples=400, deadline=None)
@given(states(), requests(), st.booleans())
def test_columns_never_reject_what_the_evaluator_accepts(
    nodes: list[NodeState], request: PodRequest, spread: bool
) -> None:
    columns = Columns()
    for state in nodes:
        columns.update(NodeState(state.name, (card(9),), (Use(),)))
    columns.update(NodeState("gone", (card(0),), (Use(),)))
    columns.remove("gone")
    for state in nodes:
        columns.update(state)
    mask = columns.candidates(request)
    admitted = {columns.name(int(place)) for place in np.flatnonzero(mask)}
    accepted = {state.name for state in nodes if isinstance(evaluate(state, request, REGISTRY), Fit)}
    assert accepted <= admitted
    # Ranks: the score is the evaluator's own, bit for bit, and ties go by name.
    score_of = {state.name: node_score(state.devices, state.uses) for state in nodes}
    for state in nodes:
        place = columns.place(state.name)
        assert place is not None
        assert float(columns.scores[place]) == score_of[state.name]
    sign = 1 if spread else -1
    expected = sorted(admitted, key=lambda name: (sign * score_of[name], name))
    assert [columns.name(place) for place in columns.ranked(mask, spread=spread)] == expected
    best = columns.best(mask, spread=spread)
    assert (None if best is None else columns.name(best)) == (expected[0] if expected else None)


def test_columns_grow_and_reuse_places() -> None:
    columns = Columns()
    for number in range(200):
        columns.update(
            NodeState(f"n{number:03}", tuple(card(each) for each in range(number % 9)), (Use(),) * (number % 9))
        )
    for number in range(0, 200, 2):
        columns.remove(f"n{number:03}")
    columns.update(NodeState("late", (card(0),), (Use(),)))
    asked = ContainerRequest(ContainerKind.APP, (DeviceRequest("NVIDIA", 8, 0, 100, 100),))
    mask = columns.candidates(PodRequest((asked,)))
    found = [columns.name(place) for place in columns.ranked(mask, spread=False)]
    assert found == [f"n{number:03}" for number in range(200) if number % 2 and number % 9 == 8]
    assert len(columns) == 101


def test_negative_control_exclusive_request_needs_an_idle_card() -> None:
    columns = Columns()
    columns.update(NodeState("n1", (card(0),), (Use(1, 0, 0),)))
    exclusive = ContainerRequest(ContainerKind.APP, (DeviceRequest("NVIDIA", 1, 0, 10, 100),))
    shared = ContainerRequest(ContainerKind.APP, (DeviceRequest("NVIDIA", 1, 0, 10, 99),))
    assert not columns.candidates(PodRequest((exclusive,))).any()
    assert columns.candidates(PodRequest((shared,))).any()
