"""The worked vectors of specification section 12, and the ones of sections 2 to 4, on the reference."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.reference.allocations import UndecodableError, collapse, decode, encode
from tests.reference.inventory import read_node
from tests.reference.model import Card, Config, Decision, Grant, Object, Request
from tests.reference.order import card_score, node_score
from tests.reference.reference import UNDECODABLE, decide

TYPE = "NVIDIA A100-SXM4-80GB"
A = "GPU-a"
B = "GPU-b"
CONFIG = Config()


def card(uuid: str, index: int, **other: Any) -> Object:
    base = {"id": uuid, "index": index, "count": 10, "devmem": 16384, "devcore": 100, "type": TYPE}
    return {**base, "mode": "hami-core", "health": True, **other}


def node(name: str = "n1", cards: list[Object] | None = None, **notes: str) -> Object:
    register = json.dumps([card(A, 0), card(B, 1)] if cards is None else cards)
    extra = {f"hami.io/{key.replace('_', '-')}": value for key, value in notes.items()}
    return {"metadata": {"name": name, "annotations": {"hami.io/node-nvidia-register": register, **extra}}}


def holder(allocated: str = f"{A},NVIDIA,4096,30:;", on: str = "n1", **other: Any) -> Object:
    notes = {"hami.io/vgpu-node": on, "hami.io/vgpu-devices-allocated": allocated}
    return {
        "metadata": {"name": "old", "namespace": "default", "uid": f"old-{on}", "annotations": notes},
        "spec": {"nodeName": on, "containers": [{"name": "c"}]},
        "status": {"phase": "Running"},
        **other,
    }


def container(name: str = "c", /, **limits: int) -> Object:
    values = {f"nvidia.com/{key}": str(value) for key, value in limits.items()}
    return {"name": name, "resources": {"limits": values}}


def pod(*containers: Object, notes: dict[str, str] | None = None, init: list[Object] | None = None) -> Object:
    meta = {"name": "p", "namespace": "default", "uid": "new", "annotations": notes or {}}
    return {"metadata": meta, "spec": {"containers": list(containers), "initContainers": init or []}}


def ask(new: Object, *, nodes: list[Object] | None = None, pods: list[Object] | None = None) -> Decision:
    nodes = [node()] if nodes is None else nodes
    pods = [holder()] if pods is None else pods
    return decide(nodes, pods, new, [item["metadata"]["name"] for item in nodes], CONFIG)


def gpu_policy(text: str) -> dict[str, str]:
    return {"hami.io/gpu-scheduler-policy": text}


def allocated(decision: Decision) -> str:
    assert decision.failed == {}
    return decision.annotations["hami.io/vgpu-devices-allocated"]


def test_node_and_card_scores() -> None:
    cards = [Card(uuid, i, i, 10, 16384, 100, TYPE, 0, "hami-core", True) for i, uuid in enumerate((A, B))]
    cards[0].charge(4096, 30)
    request = Request(1, 1000, 101, 10)
    assert node_score(cards) == 3.25
    assert [card_score(item, request, (1, 1, 1)) for item in cards] == [6.5, 0.0]
    assert [card_score(item, request, (1, 1, 3)) for item in cards] == [11.5, 0.0]


def test_request_counts_where_type_is_the_vendor_word() -> None:
    plain = Card(A, 0, 0, 10, 1000, 100, "NVIDIA", 0, "hami-core", True)
    assert card_score(plain, Request(2, 0, 50, 20), (1, 1, 1)) == pytest.approx(10 * (0.1 + 0.2 + 0.5))


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [("spread", B), ("binpack", A), ("mutex", B), ("numa", A), ("unheard-of", B), ("binpack,numa", A)],
)
def test_policy_chooses_card(policy: str, chosen: str) -> None:
    got = ask(pod(container(gpu=1, gpumem=1000), notes=gpu_policy(policy)))
    assert allocated(got) == f"{chosen},NVIDIA,1000,0:;"
    assert got.events == [("Normal", "FilteringSucceed", "find fit node(n1), 0 nodes not fit, 1 nodes fit(n1:3.25)")]


def test_second_mutex_pod_is_refused() -> None:
    both = [holder(), holder(f"{B},NVIDIA,1,0:;")]
    got = ask(pod(container(gpu=1, gpumem=1000), notes=gpu_policy("mutex")), pods=both)
    assert got.failed == {"n1": "2/2 ExclusiveDeviceAllocateConflict"}


@pytest.mark.parametrize("policy", ["spread", "binpack"])
def test_whole_card(policy: str) -> None:
    got = ask(pod(container(gpu=1, gpucores=100), notes=gpu_policy(policy)))
    assert allocated(got) == f"{B},NVIDIA,16384,100:;"


@pytest.mark.parametrize(
    ("limits", "held", "reason"),
    [
        ({"gpu": 2, "gpumem": 13000}, None, "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientMemory"),
        ({"gpu": 3}, None, "NodeInsufficientDevice"),
        (
            {"gpu": 2, "gpucores": 100, "gpumem": 1000},
            None,
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientCore",
        ),
        (
            {"gpu": 2, "gpucores": 100, "gpumem": 1000},
            f"{A},NVIDIA,1,0:;",
            "1/2 AllocatedCardsInsufficientRequest, 1/2 ExclusiveDeviceAllocateConflict",
        ),
        (
            {"gpu": 2, "gpumem": 1000},
            f"{A},NVIDIA,1,100:;",
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardComputeUnitsExhausted",
        ),
        (
            {"gpu": 2, "gpumem": 1000, "gpucores": 5},
            f"{A},NVIDIA,1,100:;",
            "1/2 AllocatedCardsInsufficientRequest, 1/2 CardInsufficientCore",
        ),
    ],
)
def test_reasons(limits: dict[str, int], held: str | None, reason: str) -> None:
    got = ask(pod(container(**limits)), pods=[holder(held) if held else holder()])
    assert got.failed == {"n1": reason}


def test_events_of_the_same_failures_on_two_nodes() -> None:
    got = ask(
        pod(container(gpu=2, gpumem=13000)),
        nodes=[node("n2"), node("n1"), {"metadata": {"name": "cpu"}}],
        pods=[holder(), holder(on="n2")],
    )
    assert got.failed["cpu"] == "node unregistered"
    assert got.events == [
        ("Warning", "FilteringFailed", "2 nodes AllocatedCardsInsufficientRequest(n1,n2)"),
        ("Warning", "FilteringFailed", "2 nodes CardInsufficientMemory(n1,n2)"),
        ("Warning", "FilteringFailed", "no available node, 3 nodes do not meet"),
    ]


def test_unparsed_reason_has_only_the_summary_event() -> None:
    got = ask(pod(container(gpu=3)))
    assert got.events == [("Warning", "FilteringFailed", "no available node, 1 nodes do not meet")]


def test_annotations_of_two_containers() -> None:
    got = ask(pod(container("a", gpu=1, gpumem=3000, gpucores=30), container("b")))
    assert got.annotations == {
        "hami.io/vgpu-node": "n1",
        "hami.io/vgpu-devices-to-allocate": f"{B},NVIDIA,3000,30:;;",
        "hami.io/vgpu-devices-allocated": f"{B},NVIDIA,3000,30:;;",
    }


def profile(name: str, memory: int, core: int, slices: int, size: int, starts: Iterable[int]) -> Object:
    places = [{"start": start, "size": size} for start in starts]
    return {"name": name, "memoryMB": memory, "core": core, "sliceCount": slices, "placements": places}


PROFILES = [
    profile("1g.10gb", 9728, 14, 1, 1, range(7)),
    profile("2g.20gb", 19968, 28, 2, 2, (0, 2, 4)),
    profile("3g.40gb", 40192, 42, 3, 4, (0, 4)),
]


def test_mig_story() -> None:
    inventory = [node(cards=[card(A, 0, count=7, devmem=81920, mode="mig", migProfiles=PROFILES)])]
    pods: list[Object] = []
    expected = [(15000, "2g.20gb", 0, 19968, 28), (9000, "1g.10gb", 6, 9728, 14)]
    for i, (asked, profile, start, mem, cores) in enumerate(expected):
        got = ask(pod(container(gpu=1, gpumem=asked)), nodes=inventory, pods=pods)
        assert allocated(got) == f"{A},NVIDIA,{mem},{cores}:;"
        slice_ = json.loads(got.annotations["hami.io/vgpu-mig-allocations"])[0]
        assert (slice_["profile"], slice_["placement"]["start"]) == (profile, start)
        new = pod(container(gpu=1, gpumem=asked), notes=got.annotations)
        new["metadata"]["uid"] = f"pod-{i}"
        pods.append(new)
    assert ask(pod(container(gpu=1, gpumem=30000)), nodes=inventory, pods=pods).failed == {
        "n1": "1/1 CardMigTopologyInfeasible"
    }


def test_mig_gives_several_slices_of_one_card() -> None:
    inventory = [node(cards=[card(A, 0, count=7, devmem=81920, mode="mig", migProfiles=PROFILES)])]
    got = ask(pod(container(gpu=2, gpumem=9000)), nodes=inventory, pods=[])
    assert allocated(got) == f"{A},NVIDIA,9728,14:{A},NVIDIA,9728,14:;"
    starts = [item["placement"]["start"] for item in json.loads(got.annotations["hami.io/vgpu-mig-allocations"])]
    assert starts == [6, 5]


@pytest.mark.parametrize(
    "register",
    [
        "GPU-x,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:",
        "GPU-x,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,0,hami-core:",
        '[{"id":"GPU-x","count":10,"devmem":32768,"devcore":100,"type":"NVIDIA-Tesla V100-PCIE-32GB",'
        '"mode":"hami-core","health":true}]',
    ],
)
def test_register_forms_say_the_same(register: str) -> None:
    got = read_node({"metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": register}}})
    assert got is not None
    assert got.cards == [
        Card("GPU-x", 0, 0, 10, 32768, 100, "NVIDIA-Tesla V100-PCIE-32GB", 0, "hami-core", True)
    ]  # fmt: skip


@pytest.mark.parametrize("register", ["garbage:", "GPU-a,10,abc,100,NVIDIA-X,0,true:", "{", "[]", "", "no separator"])
def test_unreadable_register_is_unregistered(register: str) -> None:
    broken = {"metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": register}}}
    assert ask(pod(container(gpu=1)), nodes=[broken]).failed == {"n1": "node unregistered"}


def test_missing_health_is_unhealthy() -> None:
    cards = [card(A, 0, health=False)]
    del cards[0]["health"]
    assert ask(pod(container(gpu=1)), nodes=[node(cards=cards)], pods=[]).failed == {"n1": "1/1 CardNotHealth"}


def test_cordon() -> None:
    got = ask(pod(container(gpu=2, gpumem=1)), nodes=[node(device_cordon=f" {B} ,")])
    assert got.failed == {"n1": "1/2 AllocatedCardsInsufficientRequest, 1/2 CardCordoned"}


def test_undecodable_allocation_blocks_the_node_only() -> None:
    got = ask(pod(container(gpu=1, gpumem=1)), nodes=[node("n1"), node("n2")], pods=[holder("??")])
    assert (got.node, got.failed) == ("n2", {"n1": UNDECODABLE})


@pytest.mark.parametrize("text", ["GPU-a,NVIDIA,-5,0:;", "GPU-a,NVIDIA:;", "??", "GPU-a,NVIDIA,x,0:;"])
def test_undecodable_texts(text: str) -> None:
    with pytest.raises(UndecodableError):
        decode(text)


def test_allocation_grammar() -> None:
    text = ";GPU-1,NVIDIA,3000,30:;GPU-2,NVIDIA,5000,0:GPU-3,NVIDIA,5000,0:;"
    assert encode(decode(text)) == text
    assert decode("GPU-1[0-2],NVIDIA,3000,30,more:;,,0,0:;") == [[Grant("GPU-1", 3000, 30)], [Grant("", 0, 0)]]


def test_init_containers_count_by_the_max_rule() -> None:
    """Report B31: three init containers of 10000 and an app of 1000 on a card of 16384."""
    init = [container(f"i{i}", gpu=1, gpumem=10000) for i in range(3)]
    got = ask(pod(container(gpu=1, gpumem=1000), init=init), nodes=[node(cards=[card(A, 0)])], pods=[])
    assert allocated(got) == f"{A},NVIDIA,10000,0:;" * 3 + f"{A},NVIDIA,1000,0:;"


@pytest.mark.parametrize(("size", "fits"), [(10000, False), (16000, True)])
def test_sidecars_stay_counted(size: int, fits: bool) -> None:
    """Report B32: sidecar 6000 and app 6000."""
    side = {**container("s", gpu=1, gpumem=6000), "restartPolicy": "Always"}
    got = ask(pod(container(gpu=1, gpumem=6000), init=[side]), nodes=[node(cards=[card(A, 0, devmem=size)])], pods=[])
    assert (got.node is not None) is fits


def test_collapse_keeps_slots_and_peaks() -> None:
    used = collapse(
        [
            ("sidecar", [Grant(A, 1, 1)]),
            ("init", [Grant(A, 100, 5)]),
            ("app", [Grant(A, 40, 10)]),
            ("app", [Grant(A, 40, 10), Grant(B, 7, 0)]),
        ]
    )
    assert (used[A].slots, used[A].mem, used[A].cores) == (3, 101, 21)
    assert (used[B].slots, used[B].mem, used[B].cores) == (1, 7, 0)


@pytest.mark.parametrize(
    ("hard", "reason"),
    [
        ([{"limits.nvidia.com/gpumem": "1000"}], None),
        ([{"limits.nvidia.com/gpumem": "999"}], "2/2 ResourceQuotaNotFit"),
        ([{"limits.nvidia.com/gpumem": "0"}], "2/2 ResourceQuotaNotFit"),
        ([{"limits.nvidia.com/gpumem": "9k"}, {"limits.nvidia.com/gpumem": "10"}], "2/2 ResourceQuotaNotFit"),
        ([{"limits.nvidia.com/gpucores": "9"}], "2/2 ResourceQuotaNotFit"),
        ([{"requests.nvidia.com/gpumem": "1"}], None),
    ],
)
def test_quota(hard: list[dict[str, str]], reason: str | None) -> None:
    quotas = [{"metadata": {"name": str(i), "namespace": "default"}, "spec": {"hard": h}} for i, h in enumerate(hard)]
    got = decide([node()], [], pod(container(gpu=1, gpumem=1000, gpucores=10)), ["n1"], CONFIG, quotas)
    assert got.failed == ({"n1": reason} if reason else {})


def test_no_request_passes_through() -> None:
    assert ask(pod(container())).passthrough


def test_binpack_and_spread_of_nodes_with_ties_by_name() -> None:
    empty = [node("n3"), node("n2"), node("n1")]
    spread = {"hami.io/node-scheduler-policy": "spread"}
    new = container(gpu=1, gpumem=1)
    assert ask(pod(new), nodes=empty, pods=[]).node == "n1"
    assert ask(pod(new), nodes=empty, pods=[holder(on="n2")]).node == "n2"
    assert ask(pod(new, notes=spread), nodes=empty, pods=[holder(on="n1")]).node == "n2"


def test_numa_bind_tries_all_groups() -> None:
    cards = [card(f"GPU-{i}", i, numa=numa) for i, numa in enumerate((0, 0, 1, 1))]
    bind = {"nvidia.com/numa-bind": "true"}
    full = holder("GPU-3,NVIDIA,16384,0:;")
    got = ask(pod(container(gpu=2, gpumem=1000), notes=bind), nodes=[node(cards=cards)], pods=[full])
    assert allocated(got) == "GPU-0,NVIDIA,1000,0:GPU-1,NVIDIA,1000,0:;"
    got = ask(pod(container(gpu=3, gpumem=1000), notes=bind), nodes=[node(cards=cards)], pods=[])
    assert got.failed == {"n1": "2/4 AllocatedCardsInsufficientRequest, 2/4 NumaNotFit"}


def test_topology_aware() -> None:
    cards = [card(f"GPU-{i}", i) for i in range(3)]
    pairs = [("GPU-0", "GPU-1", 10), ("GPU-0", "GPU-2", 60), ("GPU-1", "GPU-2", 20)]
    table: dict[str, dict[str, int]] = {f"GPU-{i}": {} for i in range(3)}
    for a, b, value in pairs:
        table[a][b] = table[b][a] = value
    scores = json.dumps([{"uuid": uuid, "score": row} for uuid, row in table.items()])
    inventory = [node(cards=cards, node_nvidia_score=scores)]
    one, two = (
        ask(pod(container(gpu=n, gpumem=1), notes=gpu_policy("topology-aware")), nodes=inventory, pods=[])
        for n in (1, 2)
    )
    assert allocated(one) == "GPU-1,NVIDIA,1,0:;"
    assert allocated(two) == "GPU-0,NVIDIA,1,0:GPU-2,NVIDIA,1,0:;"


def test_bad_weights_are_an_error() -> None:
    got = ask(pod(container(gpu=1), notes={"hami.io/device-scoring-weights": "slot=1,core=1"}))
    assert got.error == "calcScore failed hami.io/device-scoring-weights for pod p"


def test_whole_mig_card_means_its_largest_profile() -> None:
    whole = [card(A, 0, count=7, devmem=81920, mode="mig", migProfiles=PROFILES)]
    got = ask(pod(container(gpu=1)), nodes=[node(cards=whole)], pods=[])
    assert allocated(got) == f"{A},NVIDIA,40192,42:;"
    too_much = ask(pod(container(gpu=1, gpumem=50000)), nodes=[node(cards=whole)], pods=[])
    assert too_much.failed == {"n1": "1/1 CardMigTopologyInfeasible"}
