"""The evaluator on the worked vectors of spec/scheduler 12 and on pods with several kinds of containers."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami.core.allocation import encode_allocation
from hami.core.codec import MigAllocation, encode_shares
from hami.core.device_type import CardPick, Refusal
from hami.core.fit import Fit, evaluate
from hami.core.model import DeviceRequest, MigPlacement, MigProfile, NodeState, PodRequest, Policies, Use
from hami.core.objects import Container, Pod
from hami.core.reasons import Reason, Rejection
from hami.core.request import pod_request
from hami.core.score import node_score
from hami.vendors.nvidia.device import Nvidia
from tests.core.build import REGISTRY, device, gpu, node, pod, share

A_USE = Use(1, 4096, 30)
VECTOR = node(device("A"), device("B"), uses={"A": A_USE})
POLICY = "hami.io/gpu-scheduler-policy"


def shape(subject: Pod) -> PodRequest:
    request = pod_request(subject, REGISTRY, Policies())
    assert not isinstance(request, Refusal)
    return request


def fit(state: NodeState, subject: Pod) -> Fit:
    outcome = evaluate(state, shape(subject), REGISTRY)
    assert isinstance(outcome, Fit), outcome
    return outcome


def refused(state: NodeState, subject: Pod) -> Rejection:
    outcome = evaluate(state, shape(subject), REGISTRY)
    assert isinstance(outcome, Rejection), outcome
    return outcome


def text(outcome: Fit) -> str:
    return encode_shares(outcome.allocation["NVIDIA"])


@pytest.mark.parametrize(
    ("container", "policy", "expected"),
    [
        (gpu(mem=3000), "", "B,NVIDIA,3000,0:;"),
        (gpu(mem=3000), "spread", "B,NVIDIA,3000,0:;"),
        (gpu(mem=3000), "binpack", "A,NVIDIA,3000,0:;"),
        (gpu(mem=3000), "mutex", "B,NVIDIA,3000,0:;"),
        (gpu(cores=100), "spread", "B,NVIDIA,16384,100:;"),
        (gpu(cores=100), "binpack", "B,NVIDIA,16384,100:;"),
        (gpu(percent=50), "binpack", "A,NVIDIA,8192,0:;"),
        (gpu(2, mem=3000, cores=30), "", "B,NVIDIA,3000,30:A,NVIDIA,3000,30:;"),
    ],
)
def test_section_12_placements(container: dict[str, object], policy: str, expected: str) -> None:
    annotations = {POLICY: policy} if policy else {}
    assert text(fit(VECTOR, pod(container, annotations=annotations))) == expected


def test_section_12_containers_without_devices_keep_an_empty_segment() -> None:
    assert text(fit(VECTOR, pod(gpu(mem=3000, cores=30), {}))) == "B,NVIDIA,3000,30:;;"
    assert text(fit(VECTOR, pod({}, gpu(mem=3000), inits=({},)))) == ";;B,NVIDIA,3000,0:;"


@pytest.mark.parametrize(
    ("state", "subject", "expected"),
    [
        (VECTOR, pod(gpu(2, mem=13000)), "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"),
        (VECTOR, pod(gpu(3)), "NodeInsufficientDevice"),
        (
            node(device("A"), device("B"), uses={"A": A_USE, "B": Use(1, 1, 1)}),
            pod(gpu(mem=1), annotations={POLICY: "mutex"}),
            "2/2 ExclusiveDeviceAllocateConflict",
        ),
        (node(device("A"), uses={"A": A_USE}), pod(gpu(mem=1000, cores=100)), "1/1 CardInsufficientCore"),
        (
            node(device("A"), uses={"A": Use(1, 1, 0)}),
            pod(gpu(mem=1, cores=100)),
            "1/1 ExclusiveDeviceAllocateConflict",
        ),
        (node(device("A"), uses={"A": Use(1, 1, 100)}), pod(gpu(mem=1)), "1/1 CardComputeUnitsExhausted"),
        (node(device("A"), uses={"A": Use(10, 1, 1)}), pod(gpu(mem=1)), "1/1 CardTimeSlicingExhausted"),
        (node(device("A", healthy=False)), pod(gpu(mem=1)), "1/1 CardNotHealth"),
        (node(device("A"), cordoned=frozenset({"A"})), pod(gpu(mem=1)), "1/1 CardCordoned"),
        (node(), pod(gpu(mem=1)), "NodeInsufficientDevice"),
        (
            node(device("A", healthy=False), *(device(f"B{at}", memory_mib=10) for at in range(7))),
            pod(gpu(mem=11)),
            "1/8 CardNotHealth, 7/8 CardInsufficientMemory",
        ),
    ],
)
def test_section_12_refusals(state: NodeState, subject: Pod, expected: str) -> None:
    rejection = refused(state, subject)
    assert rejection.text == expected
    assert rejection.candidates == len(state.devices)


def test_scaled_cores_make_no_exclusive_cards() -> None:
    state = node(device("A", core_percent=300), uses={"A": Use(1, 1, 0)})
    assert fit(state, pod(gpu(mem=1, cores=100))).charge == {"A": Use(1, 1, 100)}


def test_section_12_node_score() -> None:
    assert node_score(VECTOR.devices, VECTOR.uses) == 3.25


def test_b29_containers_of_one_pod_see_each_other() -> None:
    state = node(device("A", memory_mib=10240), device("B", memory_mib=10240))
    assert text(fit(state, pod(gpu(mem=10240), gpu(mem=1024)))) == "A,NVIDIA,10240,0:;B,NVIDIA,1024,0:;"


def test_b31_init_containers_follow_the_max_rule() -> None:
    state = node(device("A", memory_mib=16000))
    outcome = fit(state, pod(gpu(mem=1000), inits=tuple(gpu(mem=10000) for _ in range(3))))
    assert outcome.charge == {"A": Use(1, 10000, 0)}
    assert text(outcome) == "A,NVIDIA,10000,0:;" * 3 + "A,NVIDIA,1000,0:;"


def test_b31_an_app_keeps_its_exclusive_card() -> None:
    outcome = fit(node(device("A")), pod(gpu(mem=5, cores=100), inits=(gpu(mem=5, cores=100),)))
    after = node(device("A"), uses=outcome.charge)
    assert refused(after, pod(gpu(mem=5, cores=22))).text == "1/1 CardInsufficientCore"


@pytest.mark.parametrize(("memory_mib", "fits"), [(10000, False), (16000, True)])
def test_b32_a_sidecar_holds_its_memory_beside_the_app(memory_mib: int, fits: bool) -> None:
    subject = pod(gpu(mem=6000), inits=({**gpu(mem=6000), "restartPolicy": "Always"},))
    outcome = evaluate(node(device("A", memory_mib=memory_mib)), shape(subject), REGISTRY)
    assert isinstance(outcome, Fit) is fits


def test_the_first_container_that_does_not_fit_is_the_reason() -> None:
    assert refused(node(device("A")), pod(gpu(mem=1), gpu(mem=99999))).text == "1/1 CardInsufficientMemory"
    assert refused(node(device("A")), pod({}, inits=(gpu(mem=99999),))).text == "1/1 CardInsufficientMemory"


def test_what_fits_never_exceeds_a_card() -> None:
    state = node(device("A", memory_mib=100), device("B", memory_mib=100))
    outcome = fit(state, pod(gpu(2, mem=40), gpu(mem=60), inits=(gpu(mem=90),)))
    for card, use in outcome.charge.items():
        assert use.memory_mib <= 100, card


wishes = st.builds(
    lambda count, mem, cores: gpu(count, mem=mem, cores=cores),
    st.integers(1, 2), st.integers(1, 60), st.sampled_from([0, 30, 100]),
)  # fmt: skip
containers = st.lists(st.one_of(wishes, st.just({})), max_size=3)
kinds = st.lists(st.booleans(), min_size=3, max_size=3)


@settings(max_examples=150)
@given(containers, containers, kinds, st.lists(st.integers(0, 40), min_size=2, max_size=2))
def test_charges_of_any_pod_stay_within_the_cards(
    apps: list[dict[str, object]], inits: list[dict[str, object]], sidecars: list[bool], used: list[int]
) -> None:
    """Promise 1 for one pod: sidecars, init containers and apps together never exceed a card."""
    marked = [
        {**each, "restartPolicy": "Always"} if flag else each for each, flag in zip(inits, sidecars, strict=False)
    ]
    uses = {"A": Use(1, used[0], 0), "B": Use(1, used[1], 0)}
    state = node(device("A", memory_mib=100, slots=3), device("B", memory_mib=100, slots=3), uses=uses)
    outcome = evaluate(state, shape(pod(*apps, inits=tuple(marked))), REGISTRY)
    if isinstance(outcome, Rejection):
        return
    for card, use in outcome.charge.items():
        after = uses[card].plus(use)
        assert (after.slots <= 3, after.memory_mib <= 100, after.core_percent <= 100) == (True, True, True)


# --- MIG ---

PROFILES = (
    MigProfile("1g.10gb", 9728, 14, 1, tuple(MigPlacement(start, 1) for start in range(7))),
    MigProfile("2g.20gb", 19968, 28, 2, tuple(MigPlacement(start, 2) for start in (0, 2, 4))),
    MigProfile("3g.40gb", 40192, 42, 3, (MigPlacement(0, 4), MigPlacement(4, 4))),
)
SEVEN = MigProfile("7g.80gb", 81000, 100, 7, (MigPlacement(0, 8),))


def mig(uses: dict[str, Use] | None = None, **fields: object) -> NodeState:
    card: dict[str, object] = {"mode": "mig", "slots": 7, "memory_mib": 81920, "mig_profiles": PROFILES, **fields}
    return node(device("M", **card), uses=uses)


def test_section_12_mig_slices() -> None:
    outcome = fit(mig(), pod(gpu(mem=15000), gpu(mem=9000)))
    assert text(outcome) == "M,NVIDIA,19968,28:;M,NVIDIA,9728,14:;"
    assert outcome.charge == {"M": Use(2, 29696, 42)}
    assert outcome.mig == (
        MigAllocation(0, 0, "M", "2g.20gb", MigPlacement(0, 2)),
        MigAllocation(1, 0, "M", "1g.10gb", MigPlacement(6, 1)),
    )
    assert refused(mig(), pod(gpu(mem=15000), gpu(mem=9000), gpu(mem=30000))).text == "1/1 CardMigTopologyInfeasible"


def test_one_request_takes_several_slices_of_one_card() -> None:
    outcome = fit(mig(), pod(gpu(3, mem=9000)))
    assert text(outcome) == "M,NVIDIA,9728,14:" * 3 + ";"
    assert [each.placement.start for each in outcome.mig] == [6, 5, 4]
    assert [each.device_index for each in outcome.mig] == [0, 1, 2]
    assert refused(mig(), pod(gpu(8, mem=9000))).counts == (
        (Reason.CARD_TIME_SLICING_EXHAUSTED, 1),
        (Reason.ALLOCATED_CARDS_INSUFFICIENT_REQUEST, 7),
    )


def test_one_request_may_take_a_slice_and_a_share() -> None:
    low = MigProfile("3g.40gb", 40192, 42, 3, (MigPlacement(0, 4),))
    state = node(device("M", mode="mig", memory_mib=81920, mig_profiles=(low,)), device("A", index=1, memory_mib=81920))
    outcome = fit(state, pod(gpu(2, mem=30000)))
    assert text(outcome) == "M,NVIDIA,40192,42:A,NVIDIA,30000,0:;"
    assert [(each.device_index, each.gpu_uuid) for each in outcome.mig] == [(0, "M")]


def test_a_whole_mig_card_is_its_largest_profile() -> None:
    whole = fit(mig(mig_profiles=(*PROFILES, SEVEN)), pod(gpu(cores=100)))
    assert text(whole) == "M,NVIDIA,81000,100:;"
    assert text(fit(mig(), pod(gpu()))) == "M,NVIDIA,40192,42:;"
    assert text(fit(mig(), pod(gpu(percent=40)))) == "M,NVIDIA,40192,42:;"


def test_a_mig_card_with_unknown_slices_takes_nothing() -> None:
    assert refused(mig(uses={"M": Use(1, 9728, 14)}), pod(gpu(mem=1))).text == "1/1 CardNotHealth"


def test_slices_of_other_pods_are_kept_clear() -> None:
    state = NodeState("n1", mig().devices, (Use(1, 9728, 14),), mig_taken={"M": (MigPlacement(6, 1),)})
    assert fit(state, pod(gpu(mem=9000))).mig[0].placement == MigPlacement(5, 1)


@pytest.mark.parametrize(
    ("held", "memory_mib", "start"),
    [
        (MigPlacement(1, 1), 15000, 2),
        (MigPlacement(3, 1), 15000, 0),
        (MigPlacement(0, 2), 15000, 2),
        (MigPlacement(0, 4), 15000, 4),
        (MigPlacement(5, 1), 30000, 0),
        (MigPlacement(2, 2), 30000, 4),
        (MigPlacement(4, 4), 9000, 3),
    ],
)
def test_slices_lie_beside_what_overlaps_only_in_part(held: MigPlacement, memory_mib: int, start: int) -> None:
    state = NodeState("n1", mig().devices, (Use(1, 9728, 14),), mig_taken={"M": (held,)})
    (made,) = fit(state, pod(gpu(mem=memory_mib))).mig
    assert made.placement.start == start
    assert not made.placement.overlaps(held)


def test_an_init_container_uses_the_same_slice_or_another_one() -> None:
    same = fit(mig(), pod(gpu(mem=9000), inits=(gpu(mem=9000),)))
    assert {each.placement for each in same.mig} == {MigPlacement(6, 1)}
    assert same.charge == {"M": Use(1, 9728, 14)}
    overlapping = pod(gpu(mem=15000), inits=(gpu(mem=30000),))
    assert fit(mig(), overlapping).charge == {"M": Use(1, 40192, 42)}
    only_low = mig(mig_profiles=(PROFILES[1], MigProfile("3g.40gb", 40192, 42, 3, (MigPlacement(0, 4),))))
    assert refused(only_low, overlapping).text == "1/1 CardMigTopologyInfeasible"


def test_pods_may_exclude_mig_cards() -> None:
    subject = pod(gpu(2, mem=9000), annotations={"nvidia.com/vgpu-mode": "hami-core"})
    assert refused(mig(), subject).text == "NodeInsufficientDevice"


# --- several vendors (report B58) ---


class Other(Nvidia):
    """A second vendor with names of its own."""

    word = "OTHER"
    to_allocate_key = "example.com/to-allocate"
    allocated_key = "example.com/allocated"

    def request(self, container: Container) -> DeviceRequest | None:
        asked = super().request(container)
        assert not isinstance(asked, Refusal)
        return None if asked is None else msgspec.structs.replace(asked, vendor=self.word)

    def pick(self, state: NodeState, *args: object, **kwargs: object) -> CardPick | Rejection:
        at = next(at for at, each in enumerate(state.devices) if each.vendor == self.word)
        return CardPick(((at, share(state.devices[at].id, 7, 7)),))


def test_b58_one_container_gets_a_card_of_each_vendor() -> None:
    registry = (*REGISTRY, Other())
    request = pod_request(pod({}, gpu(mem=5)), registry, Policies())
    assert isinstance(request, PodRequest)
    state = node(device("O", vendor="OTHER"), device("A"))
    outcome = evaluate(state, request, registry)
    assert isinstance(outcome, Fit)
    assert encode_allocation(outcome.allocation, registry) == {
        "hami.io/vgpu-devices-to-allocate": ";A,NVIDIA,5,0:;",
        "hami.io/vgpu-devices-allocated": ";A,NVIDIA,5,0:;",
        "example.com/to-allocate": ";O,NVIDIA,7,7:;",
        "example.com/allocated": ";O,NVIDIA,7,7:;",
    }
    assert outcome.charge == {"A": Use(1, 5, 0), "O": Use(1, 7, 7)}
    only = evaluate(state, request, REGISTRY)
    assert isinstance(only, Rejection)
    assert only.text == "Device type not found"


# --- quota ---


def test_the_quota_is_asked_about_the_slice_that_is_charged() -> None:
    outcome = evaluate(mig(), shape(pod(gpu(mem=5000))), REGISTRY, lambda word, use: use.memory_mib <= 9000)
    assert isinstance(outcome, Rejection)
    assert outcome.text == "1/1 ResourceQuotaNotFit"


def test_a_card_that_would_exceed_the_quota_is_refused() -> None:
    asked: list[Use] = []

    def room(word: str, use: Use) -> bool:
        asked.append(use)
        return use.memory_mib <= 5000

    subject = shape(pod(gpu(mem=3000), gpu(mem=3000), inits=(gpu(mem=4000),)))
    outcome = evaluate(node(device("A")), subject, REGISTRY, room)
    assert isinstance(outcome, Rejection)
    assert outcome.text == "1/1 ResourceQuotaNotFit"
    assert asked == [Use(1, 4000, 0), Use(1, 4000, 0), Use(2, 6000, 0)]
