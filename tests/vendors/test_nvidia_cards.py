"""NVIDIA's choice of cards: order, selectors, NUMA (spec/scheduler 4.5, 4.6, report B46)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.model import Device, DeviceRequest, NodeState, Policies, Use, Weights
from hami.core.reasons import Rejection
from hami.vendors.nvidia.order import tried_order
from tests.core.build import device, node
from tests.vendors.nvidia_picks import NVIDIA, ids, pick, request, text

# Cards in registration order: use 20 %, 50 %, 0 %, 50 %, 0 % on NUMA nodes 0, 0, 1, 1, 0.
MIXED = node(
    device("low", index=4, numa=0), device("high-0", index=3, numa=0), device("idle-1", index=2, numa=1),
    device("high-1", index=1, numa=1), device("idle-0", index=0, numa=0),
    uses={"low": Use(3, 0, 0), "high-0": Use(5, 0, 0), "high-1": Use(5, 0, 0)},
)  # fmt: skip


@pytest.mark.parametrize(
    ("words", "numa_bind", "order"),
    [
        ("binpack", False, "high-1 high-0 low idle-1 idle-0"),
        ("spread", False, "idle-1 idle-0 low high-1 high-0"),
        ("mutex", False, "idle-1 idle-0 low high-1 high-0"),
        ("topology-aware", False, "idle-1 idle-0 low high-1 high-0"),
        ("nonsense", False, "idle-1 idle-0 low high-1 high-0"),
        ("binpack", True, "high-0 low idle-0 high-1 idle-1"),
        ("spread", True, "idle-1 high-1 idle-0 low high-0"),
        ("mutex", True, "idle-1 high-1 idle-0 low high-0"),
        ("numa", False, "high-1 idle-1 idle-0 high-0 low"),
        ("numa,binpack", False, "high-1 idle-1 high-0 low idle-0"),
        ("binpack,numa", False, "high-1 high-0 low idle-1 idle-0"),
        ("spread,numa", False, "idle-1 idle-0 low high-1 high-0"),
        ("spread,mutex", False, "idle-0 idle-1 low high-1 high-0"),
        ("mutex,topology-aware", False, "idle-0 idle-1 low high-1 high-0"),
        ("binpack,mutex", True, "high-1 idle-1 high-0 low idle-0"),
    ],
)
def test_cards_are_tried_in_order(words: str, numa_bind: bool, order: str) -> None:
    policies = Policies("binpack", tuple(words.split(",")))
    tried = tried_order(MIXED, range(5), request(), policies, numa_bind=numa_bind)
    assert [MIXED.devices[position].id for position in tried] == order.split()


def test_mutex_looks_at_tasks_and_numa_nodes_and_not_at_sizes() -> None:
    """Both are idle; the larger one, of the lower NUMA node, is emptier once the request is on it (for cards whose type
    is the vendor's word upstream counts the request)."""
    state = node(device("large", type="NVIDIA", memory_mib=81920), device("small", type="NVIDIA", numa=1))
    wanted = DeviceRequest("NVIDIA", 1, 16000, 0, 0)
    tried = {
        word: tried_order(state, (0, 1), wanted, Policies("binpack", (word,)), numa_bind=False)
        for word in ("mutex", "spread")
    }
    assert tried == {"mutex": [1, 0], "spread": [0, 1]}


def test_weights_change_the_order() -> None:
    state = node(device("slots"), device("memory"), uses={"slots": Use(2, 0, 0), "memory": Use(1, 3000, 0)})
    for weights, first in ((Weights(1, 1, 1), "memory"), (Weights(1, 1, 0), "slots")):
        policies = Policies("binpack", ("binpack",), weights)
        assert state.devices[tried_order(state, range(2), request(), policies, numa_bind=False)[0]].id == first


def test_equal_cards_go_by_index_then_registration() -> None:
    state = node(device("c", index=2), device("a", index=0), device("b1", index=1), device("b2", index=1))
    assert ids(state, pick(state, request(4))) == ["a", "b1", "b2", "c"]


TWO = node(device("GPU-a"), device("GPU-b", type="NVIDIA-Tesla T4"))


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"use-gpuuuid": ""}, ["GPU-a", "GPU-b"]),
        ({"use-gpuuuid": "GPU-b"}, ["GPU-b"]),
        ({"use-gpuuuid": " GPU-b ,, GPU-x "}, ["GPU-b"]),
        ({"nouse-gpuuuid": ""}, ["GPU-a", "GPU-b"]),
        ({"nouse-gpuuuid": "GPU-a"}, ["GPU-b"]),
        ({"use-gpuuuid": "GPU-a,GPU-b", "nouse-gpuuuid": "GPU-a"}, ["GPU-b"]),
        ({"use-gputype": ""}, ["GPU-a", "GPU-b"]),
        ({"use-gputype": "t4, h100"}, ["GPU-b"]),
        ({"use-gputype": "T4,H100"}, ["GPU-b"]),
        ({"use-gputype": "nvidia"}, ["GPU-a", "GPU-b"]),
        ({"nouse-gputype": ""}, ["GPU-a", "GPU-b"]),
        ({"nouse-gputype": ",A100"}, ["GPU-b"]),
        ({"use-gputype": "nvidia", "nouse-gputype": "TESLA"}, ["GPU-a"]),
        ({"vgpu-mode": "hami-core"}, ["GPU-a", "GPU-b"]),
        ({"vgpu-mode": ""}, ["GPU-a", "GPU-b"]),
    ],
)
def test_b46_selection_lists(annotations: dict[str, str], expected: list[str]) -> None:
    keys = {f"nvidia.com/{key}": value for key, value in annotations.items()}
    assert ids(TWO, pick(TWO, request(len(expected)), annotations=keys)) == expected
    if len(expected) < 2:
        assert isinstance(pick(TWO, request(2), annotations=keys), Rejection)


@pytest.mark.parametrize(
    ("annotations", "reasons"),
    [
        ({"use-gpuuuid": "GPU-a", "nouse-gpuuuid": "GPU-a"}, "2/2 CardUuidMismatch"),
        ({"use-gputype": "h100"}, "2/2 CardTypeMismatch"),
        ({"vgpu-mode": "mig"}, "2/2 CardTypeMismatch"),
        ({"use-gputype": "t4", "use-gpuuuid": "GPU-a"}, "1/2 CardTypeMismatch, 1/2 CardUuidMismatch"),
    ],
)
def test_selection_lists_are_reasons(annotations: dict[str, str], reasons: str) -> None:
    keys = {f"nvidia.com/{key}": value for key, value in annotations.items()}
    assert text(pick(TWO, request(), annotations=keys)) == reasons


@pytest.mark.parametrize(("value", "bound"), [("true", True), ("1", True), ("T", True), ("yes", False), ("", False)])
def test_the_numa_flag_is_read_like_upstream(value: str, bound: bool) -> None:
    assert NVIDIA.selectors({"nvidia.com/numa-bind": value}).numa_bind is bound


def test_checks_come_in_upstreams_order() -> None:
    """A card with every fault shows the first; taking faults away one by one shows the next (4.6)."""
    full = Use(10, 16384, 100)
    bad = device("A", healthy=False, type="NVIDIA T4")
    keys = {"nvidia.com/use-gputype": "a100", "nvidia.com/use-gpuuuid": "B"}
    states = [
        (node(bad, uses={"A": full}, cordoned=frozenset("A")), keys, "CardNotHealth"),
        (node(device("A", type="NVIDIA T4"), uses={"A": full}, cordoned=frozenset("A")), keys, "CardCordoned"),
        (node(device("A", type="NVIDIA T4"), uses={"A": full}), keys, "CardTypeMismatch"),
        (node(device("A"), uses={"A": full}), keys, "CardUuidMismatch"),
        (node(device("A"), uses={"A": full}), {}, "CardTimeSlicingExhausted"),
        (node(device("A"), uses={"A": Use(1, 16384, 100)}), {}, "ExclusiveDeviceAllocateConflict"),
    ]
    for state, notes, reason in states:
        assert text(pick(state, request(cores=50), "mutex", annotations=notes)) == f"1/1 {reason}"
    assert text(pick(states[5][0], request(cores=50))) == "1/1 CardInsufficientMemory"
    assert text(pick(node(device("A"), uses={"A": Use(1, 0, 100)}), request(cores=50))) == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(
    ("total", "used", "asked", "refused"),
    [(100, 100, 0, True), (100, 99, 0, False), (1, 1, 0, True), (0, 0, 0, False), (0, 0, 1, True)],
)
def test_what_asks_for_no_cores_needs_a_card_that_has_some_left(
    total: int, used: int, asked: int, refused: bool
) -> None:
    """4.6 no. 12; a card that was registered without cores has none to run out of."""
    state = node(device("A", core_percent=total), uses={"A": Use(1, 0, used)})
    assert isinstance(pick(state, request(cores=asked)), Rejection) is refused


BIND = {"nvidia.com/numa-bind": "true"}


def numa_node(*nodes: int, **fields: object) -> NodeState:
    return node(*(device(f"{at}@{numa}", index=at, numa=numa, **fields) for at, numa in enumerate(nodes)))


@pytest.mark.parametrize(
    ("words", "expected"),
    [("spread", ["2@1", "3@1"]), ("binpack", ["0@0", "1@0"]), ("mutex", ["2@1", "3@1"]), ("numa", ["2@1", "3@1"])],
)
def test_numa_bind_takes_one_group(words: str, expected: list[str]) -> None:
    state = numa_node(0, 0, 1, 1)
    assert ids(state, pick(state, request(2), words, annotations=BIND)) == expected


def test_numa_bind_goes_on_to_the_next_group() -> None:
    state = numa_node(0, 0, 0, 1, 1)
    assert ids(state, pick(state, request(3), annotations=BIND)) == ["0@0", "1@0", "2@0"]


def test_numa_bind_reports_the_cards_given_up_and_the_last_group() -> None:
    state = numa_node(0, 0, 1, 1, 2)
    assert text(pick(state, request(3), annotations=BIND)) == "2/5 AllocatedCardsInsufficientRequest, 3/5 NumaNotFit"


@pytest.mark.parametrize("words", ["topology-aware", "topology-aware,binpack"])
def test_numa_bind_with_topology_looks_at_every_group(words: str) -> None:
    state = numa_node(0, 0, 0, 1, 1, 2)
    linked = NodeState(state.name, state.devices, state.uses, pair_scores={"0@0": {"2@0": 50}, "3@1": {"4@1": 20}})
    assert ids(linked, pick(linked, request(2), *words.split(","), annotations=BIND)) == ["0@0", "2@0"]
    assert ids(state, pick(state, request(3), *words.split(","), annotations=BIND)) == ["0@0", "1@0", "2@0"]
    assert text(pick(state, request(4), *words.split(","), annotations=BIND)).endswith("NumaNotFit")


def test_numa_bind_with_topology_keeps_the_first_of_equal_groups() -> None:
    state = numa_node(0, 0, 1, 1)
    assert ids(state, pick(state, request(2), "topology-aware", annotations=BIND)) == ["2@1", "3@1"]


cards = st.lists(
    st.builds(
        lambda numa, slots, memory, cores, healthy: device(
            "x", numa=numa, slots=slots, memory_mib=memory, core_percent=cores, healthy=healthy
        ),
        st.integers(0, 1), st.integers(0, 3), st.integers(0, 300), st.sampled_from([0, 100, 200]), st.booleans(),
    ),
    min_size=1, max_size=5,
)  # fmt: skip
uses = st.lists(st.builds(Use, st.integers(0, 3), st.integers(0, 300), st.integers(0, 100)), min_size=5, max_size=5)
requests = st.builds(request, st.integers(1, 3), st.integers(0, 300), st.sampled_from([0, 30, 100]))
chains = st.lists(
    st.sampled_from(["binpack", "spread", "numa", "mutex", "topology-aware"]), min_size=1, max_size=2, unique=True
)


@settings(max_examples=200)
@given(cards, uses, requests, chains, st.booleans())
def test_picks_stay_within_cards(
    found: list[Device], taken: list[Use], asked: DeviceRequest, words: list[str], bind: bool
) -> None:
    named = tuple(
        device(f"G{at}", index=at, numa=each.numa, slots=each.slots, memory_mib=each.memory_mib,
               core_percent=each.core_percent, healthy=each.healthy)
        for at, each in enumerate(found)
    )  # fmt: skip
    state = NodeState("n", named, tuple(taken[: len(named)]))
    annotations = BIND if bind else {}
    outcome = pick(state, asked, *words, annotations=annotations)
    assert outcome == pick(state, asked, *words, annotations=annotations)
    if isinstance(outcome, Rejection):
        assert outcome.text
        return
    assert len({at for at, _ in outcome.cards}) == asked.count
    assert not bind or len({named[at].numa for at, _ in outcome.cards}) == 1
    for at, share in outcome.cards:
        after = state.uses[at].plus(NVIDIA.use_of(share))
        card = named[at]
        assert card.healthy
        assert after.slots <= card.slots
        assert after.memory_mib <= max(card.memory_mib, state.uses[at].memory_mib)
        assert after.core_percent <= max(card.core_percent, state.uses[at].core_percent)
