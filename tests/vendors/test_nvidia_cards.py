"""NVIDIA's choice of cards: order, selectors, NUMA, topology (spec/scheduler 4.5, 4.6, reports B46, B47)."""

from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.device_type import CardPick
from hami.core.model import Device, DeviceRequest, MigPlacement, MigProfile, NodeState, Policies, Use, Weights
from hami.core.reasons import Reason, Rejection
from hami.vendors.nvidia.device import Nvidia
from hami.vendors.nvidia.order import tried_order
from hami.vendors.nvidia.topology import best_linked, loneliest, total
from tests.core.build import device, node

NVIDIA = Nvidia()


def request(count: int = 1, mem: int = 100, cores: int = 0) -> DeviceRequest:
    return DeviceRequest("NVIDIA", count, mem, 100, cores)


def pick(
    state: NodeState, asked: DeviceRequest, *words: str, annotations: dict[str, str] | None = None
) -> CardPick | Rejection:
    return NVIDIA.pick(state, asked, NVIDIA.selectors(annotations or {}), Policies("binpack", words or ("spread",)))


def ids(state: NodeState, outcome: CardPick | Rejection) -> list[str]:
    assert isinstance(outcome, CardPick), outcome
    assert [share.device_id for _, share in outcome.cards] == [state.devices[at].id for at, _ in outcome.cards]
    return [share.device_id for _, share in outcome.cards]


def text(outcome: CardPick | Rejection) -> str:
    assert isinstance(outcome, Rejection), outcome
    return outcome.text


# --- order ---

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


# --- selectors (report B46) ---

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
    for state, annotations, reason in states:
        assert text(pick(state, request(cores=50), "mutex", annotations=annotations)) == f"1/1 {reason}"
    assert text(pick(states[5][0], request(cores=50))) == "1/1 CardInsufficientMemory"
    assert text(pick(node(device("A"), uses={"A": Use(1, 0, 100)}), request(cores=50))) == "1/1 CardInsufficientCore"


# --- NUMA ---

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


# --- topology ---


def test_topology_counts_each_slice_of_a_mig_card_as_a_candidate() -> None:
    profile = MigProfile("1g.10gb", 100, 14, 1, tuple(MigPlacement(start, 1) for start in range(7)))
    state = node(device("M", mode="mig", slots=7, mig_profiles=(profile,)), device("G", index=1))
    outcome = pick(state, request(2), "topology-aware")
    assert ids(state, outcome) == ["M", "M"]
    assert isinstance(outcome, CardPick)
    assert [each.placement.start for each in outcome.slices if each] == [6, 5]


def scored(count: int, scores: dict[tuple[int, int], int]) -> NodeState:
    cards = [device(f"G{at}", index=at) for at in range(count)]
    table: dict[str, dict[str, int]] = {}
    for (left, right), score in scores.items():
        table.setdefault(f"G{left}", {})[f"G{right}"] = score
        table.setdefault(f"G{right}", {})[f"G{left}"] = score
    return node(*cards, pair_scores=table)


@pytest.mark.parametrize(
    ("state", "count", "expected"),
    [
        (scored(4, {(0, 1): 10, (2, 3): 50}), 2, ["G2", "G3"]),
        (scored(4, {(0, 1): 10, (2, 3): 50}), 1, ["G0"]),
        (scored(4, {(0, 1): 10, (0, 2): 10, (2, 3): 50}), 1, ["G1"]),
        (scored(4, {}), 2, ["G0", "G1"]),
        (scored(4, {}), 4, ["G0", "G1", "G2", "G3"]),
        (scored(8, {(at, at + 4): 60 for at in range(4)}), 4, ["G0", "G1", "G4", "G5"]),
    ],
)
def test_b47_topology_takes_the_best_linked_cards(state: NodeState, count: int, expected: list[str]) -> None:
    assert ids(state, pick(state, request(count), "topology-aware")) == expected


def test_topology_counts_only_cards_that_pass() -> None:
    state = scored(4, {(0, 1): 50, (2, 3): 10})
    taken = NodeState(state.name, state.devices, (Use(10), Use(), Use(), Use()), pair_scores=state.pair_scores)
    assert ids(taken, pick(taken, request(2), "topology-aware")) == ["G2", "G3"]
    outcome = pick(taken, request(4), "topology-aware")
    assert isinstance(outcome, Rejection)
    assert outcome.counts == (
        (Reason.CARD_TIME_SLICING_EXHAUSTED, 1),
        (Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, 3),
    )


def test_sixteen_cards_in_two_islands_are_told_apart() -> None:
    """Above the exact limit: eight cards of one island, whichever card the search begins with."""
    scores = {
        (left, right): 100 if left % 2 == right % 2 else 10 for left, right in combinations(range(16), 2)
    }  # fmt: skip
    state = scored(16, scores)
    assert ids(state, pick(state, request(8), "topology-aware")) == [f"G{at}" for at in range(0, 16, 2)]


matrices = st.integers(9, 12).flatmap(
    lambda size: st.lists(st.lists(st.integers(0, 60), min_size=size, max_size=size), min_size=size, max_size=size)
)


@settings(max_examples=25, deadline=None)
@given(matrices, st.integers(4, 6))
def test_the_bounded_search_comes_close_to_the_best(matrix: list[list[int]], count: int) -> None:
    cards = [str(at) for at in range(len(matrix))]
    scores = {left: dict(zip(cards, row, strict=True)) for left, row in zip(cards, matrix, strict=True)}
    chosen = best_linked(cards, count, scores)
    assert chosen == best_linked(cards, count, scores)
    assert len(set(chosen)) == count
    best = max(total(matrix, each) for each in combinations(range(len(matrix)), count))
    assert total(matrix, chosen) >= 0.9 * best


@pytest.mark.parametrize("count", [2, 4, 8, 12])
def test_sixteen_cards_do_as_well_as_the_best_of_many_guesses(count: int) -> None:
    """Where every set cannot be tried: not below the best of 400 random sets, and the same each time."""
    for seed in range(5):
        rng = Random(seed)
        cards = [f"G{at}" for at in range(16)]
        scores = {left: {right: rng.choice((0, 10, 50, 300)) for right in cards if right != left} for left in cards}
        matrix = [[scores[left].get(right, 0) for right in cards] for left in cards]
        chosen = best_linked(cards, count, scores)
        assert chosen == best_linked(cards, count, scores)
        guesses = (tuple(sorted(rng.sample(range(16), count))) for _ in range(400))
        assert total(matrix, chosen) >= max(total(matrix, guess) for guess in guesses)


@pytest.mark.parametrize("count", range(2, 8))
def test_up_to_eight_cards_the_best_set_is_found_and_of_equals_the_first(count: int) -> None:
    for seed in range(60):
        cards, scores, matrix = linked(seed, 8)
        sets = list(combinations(range(8), count))
        assert best_linked(cards, count, scores) == max(sets, key=lambda each: total(matrix, each)), seed


@pytest.mark.parametrize(("seed", "count"), [(16, 4), (10, 5), (14, 5), (16, 5), (30, 5), (54, 5)])
def test_sixteen_cards_where_growing_alone_misses_the_best(seed: int, count: int) -> None:
    """4,368 sets of five are more than are tried; swaps find the best one here."""
    cards, scores, matrix = linked(seed, 16)
    best = max(total(matrix, each) for each in combinations(range(16), count))
    assert total(matrix, best_linked(cards, count, scores)) == best


def linked(seed: int, size: int) -> tuple[list[str], dict[str, dict[str, int]], list[list[int]]]:
    """Cards, their pair scores as annotations have them, and as a matrix."""
    rng = Random(seed)
    cards = [f"G{at}" for at in range(size)]
    matrix = [[0] * size for _ in range(size)]
    for left, right in combinations(range(size), 2):
        matrix[left][right] = matrix[right][left] = rng.choice((0, 10, 50, 300))
    scores = {card: dict(zip(cards, row, strict=True)) for card, row in zip(cards, matrix, strict=True)}
    return cards, scores, matrix


def test_the_loneliest_card_is_the_first_of_equals() -> None:
    assert loneliest(["a", "b", "c"], {"a": {"b": 5}, "b": {"a": 5}}) == 2
    assert loneliest(["a", "b"], {}) == 0


# --- whatever the state, a pick holds what it promises ---

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
