"""Kinds of faults from public reports that no other test of this room names: smallest inputs and their neighbours."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from prometheus_client import generate_latest

from hami.core.model import Use
from hami.core.objects import Pod
from hami.placement.engine import Engine, NodeNames
from hami.placement.world import World
from hami.web.card_metrics import snapshot
from tests.placement.fakes import (
    NVIDIA,
    FakeClock,
    annotated,
    card,
    container,
    deleted,
    init_ended,
    make_node,
    make_pod,
    make_world,
    with_phase,
)

INT32_MAX = 2**31 - 1


@pytest.fixture
def world() -> World:
    return make_world()


def ask(world: World, pod: Pod, *names: str) -> str:
    """The chosen node, else the reason of the only node."""
    answer = Engine(world).filter(pod, NodeNames.of(names or ("n1",)))
    assert answer.error == ""
    return answer.node or " ".join(answer.failed.values())


def held(world: World, uid: str) -> list[str]:
    claim = world.ledger.get(uid)
    return [device for device, _ in claim.charges] if claim is not None else []


@pytest.mark.parametrize(
    ("key", "text", "cards"),
    [
        ("use-gpuuuid", " , ,", ["GPU-0"]),
        ("use-gpuuuid", "GPU-1\n", ["GPU-1"]),
        ("use-gpuuuid", "GPU-1," * 5000, ["GPU-1"]),
        ("use-gpuuuid", "GPU-", []),
        ("use-gpuuuid", "GPU-0;GPU-1", []),
        ("nouse-gpuuuid", " , ", ["GPU-0"]),
        ("nouse-gpuuuid", "GPU-0,GPU-1", []),
        ("use-gputype", ", ,", ["GPU-0"]),
        ("nouse-gputype", ",", ["GPU-0"]),
    ],
)
def test_b46_blanks_are_no_rule_and_ids_are_whole(world: World, key: str, text: str, cards: list[str]) -> None:
    world.on_node(make_node("n1"))
    ask(world, make_pod("p", annotations={f"nvidia.com/{key}": text}))
    assert held(world, "uid-p") == cards


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "scores",
    ["", "[]", "null", "{}", '[{"uuid":"GPU-0","score":{"GPU-1":40}}]', '[{"uuid":"GPU-0","score":{"GPU-1":-1}}]',
     '[{"uuid":"GPU-0","score":null}]', '[{"uuid":"GPU-9","score":{"GPU-8":1}}]',
     '[{"x":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}]"],
)  # fmt: skip
def test_b47_any_pair_scores_leave_some_combination(world: World, scores: str, count: int) -> None:
    node = make_node("n1", 4)
    notes = node.annotations | {NVIDIA.score_key: scores}
    world.on_node(msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, annotations=notes)))
    pod = make_pod("p", container(count, 100), annotations={"hami.io/gpu-scheduler-policy": "topology-aware"})
    assert ask(world, pod) == "n1"
    assert len(set(held(world, "uid-p"))) == count


@pytest.mark.parametrize(
    ("memory_mib", "sidecars", "inits", "fits"),
    [
        (10000, 1, 0, False),
        (12000, 1, 0, True),
        (16000, 1, 1, True),
        (14999, 1, 1, False),
        (16000, 2, 0, False),
        (18000, 2, 0, True),
    ],
)
def test_b32_sidecars_add_up_with_what_runs_beside_them(
    world: World, memory_mib: int, sidecars: int, inits: int, fits: bool
) -> None:
    """App 6000, each sidecar 6000, an init container 9000 that runs beside the sidecars."""
    world.on_node(make_node("n1", [card(0, memory_mib=memory_mib)]))
    before = [container(1, 6000, name=f"s{at}", restart="Always") for at in range(sidecars)]
    before += [container(1, 9000, name=f"i{at}") for at in range(inits)]
    assert (ask(world, make_pod("p", container(1, 6000), init=tuple(before))) == "n1") == fits


def test_b31_a_finished_init_container_leaves_the_apps_exclusive_claim(world: World) -> None:
    world.on_node(make_node("n1", [card(0)]))
    share = "GPU-0,NVIDIA,1000,100:;"
    pod = make_pod("a", container(1, 1000, 100), init=(container(1, 1000, 100, name="i"),))
    world.on_pod(init_ended(annotated(pod, "n1", share * 2)))
    assert "CardInsufficientCore" in ask(world, make_pod("b", container(1, 100, 22)))


@pytest.mark.parametrize("ended", ["Succeeded", "Failed"])
@pytest.mark.parametrize("late", [False, True])
def test_b25_b91_ended_pods_hold_nothing_in_any_order_of_events(world: World, ended: str, late: bool) -> None:
    world.on_node(make_node("n1", [card(0)]))
    for number in range(20):
        pod = annotated(make_pod("p", uid=f"u{number}", version=number * 3 + 1), "n1", "GPU-0,NVIDIA,16384,100:;")
        world.on_pod(pod)
        assert "CardInsufficientMemory" in ask(world, make_pod("waiting", container(1, 16384)))
        world.on_pod(with_phase(deleted(pod), ended))
        world.on_pod_deleted("default", "p", f"u{number}")
        if late:
            world.on_pod(pod)
        assert dict(world.ledger.uses("n1")) == {}
    assert ask(world, make_pod("waiting", container(1, 16384))) == "n1"


@pytest.mark.parametrize("text", ["??", "GPU-0,NVIDIA,-5,0:;", "GPU-0,NVIDIA:;", "GPU-0,NVIDIA,x,1:;", " "])
def test_b37_b38_unreadable_allocations_close_their_node_only(world: World, text: str) -> None:
    world.on_node(make_node("n1"))
    world.on_node(make_node("n2"))
    world.on_pod(with_phase(annotated(make_pod("a"), "n1", text), "Running"))
    assert ask(world, make_pod("p", annotations={"hami.io/node-scheduler-policy": "binpack"}), "n1", "n2") == "n2"
    world.on_pod(with_phase(annotated(make_pod("a", version=2), "n1", "GPU-0,NVIDIA,5,5:;"), "Running"))
    assert ask(world, make_pod("q"), "n1") == "n1"


def test_b13_sums_beyond_32_bits_do_not_wrap(world: World) -> None:
    world.on_node(make_node("n1", [card(0, slots=INT32_MAX, memory_mib=INT32_MAX, core_percent=INT32_MAX)]))
    for number in range(5):
        world.on_pod(annotated(make_pod(f"x{number}"), "n1", f"GPU-0,NVIDIA,{INT32_MAX},{INT32_MAX}:" * 3 + ";"))
    world.settle_now()
    assert dict(world.ledger.uses("n1")) == {"GPU-0": Use(15, 15 * INT32_MAX, 15 * INT32_MAX)}
    assert "CardInsufficientMemory" in ask(world, make_pod("p", container(1, 1)))
    assert "NodeInsufficientDevice" in ask(world, make_pod("q", container(INT32_MAX, INT32_MAX)))


def test_b34_any_mix_of_candidates_is_answered_with_a_reason_each(world: World) -> None:
    world.on_node(make_node("good"))
    world.on_node(make_node("cpu", register=""))
    world.on_node(make_node("none", 0))
    world.on_node(make_node("broken", register="garbage:"))
    names = ["cpu", "none", "broken", "unknown", "", "n" * 253, "good", "good"]
    assert ask(world, make_pod("p"), *names) == "good"
    answer = Engine(world).filter(make_pod("q", container(9)), NodeNames.of(names))
    assert (answer.node, answer.error, set(answer.failed)) == (None, "", set(names))
    assert all(answer.failed.values())


def test_b43_nodes_with_equal_card_ids_do_not_share_them(world: World) -> None:
    world.on_node(make_node("n1", [card(0)]))
    world.on_node(make_node("n2", [card(0)]))
    chosen = {ask(world, make_pod(name, container(1, 16384)), "n1", "n2") for name in ("a", "b")}
    assert chosen == {"n1", "n2"}
    world.on_node(make_node("n2", 0, version=9))
    world.on_pod_deleted("default", "a", "uid-a")
    world.on_pod_deleted("default", "b", "uid-b")
    assert ask(world, make_pod("c"), "n1", "n2") == "n1"


async def test_b35_scrapes_see_whole_states_while_pods_and_nodes_come_and_go(world: World) -> None:
    async def churn() -> None:
        for number in range(300):
            world.on_node(make_node(f"n{number % 50}", version=number + 1, uid=f"u{number // 50}"))
            world.on_pod(annotated(make_pod(f"p{number}", version=1), f"n{number % 50}", "GPU-0,NVIDIA,10,1:;"))
            if number % 3 == 0:
                world.on_node_deleted(f"n{number * 7 % 50}")
            if number % 2:
                world.on_pod_deleted("default", f"p{number}", f"uid-p{number}")
            await asyncio.sleep(0)

    changing = asyncio.create_task(churn())
    while not changing.done():
        page = (await asyncio.to_thread(generate_latest, snapshot(world))).decode()
        assert page.count("\nhami_gpu_shared_count{") == page.count("\nhami_gpu_memory_limit_bytes{")
        await asyncio.sleep(0)
    await changing


def test_b112_amounts_are_values_never_labels() -> None:
    clock = FakeClock()
    world = make_world(clock)
    world.on_node(make_node("n1"))
    series: list[set[str]] = []
    for number in range(1, 30):
        world.on_pod(annotated(make_pod("p", version=number), "n1", f"GPU-0,NVIDIA,{number * 10},{number}:;"))
        page = generate_latest(snapshot(world)).decode().splitlines()
        series.append({line.rpartition(" ")[0] for line in page if not line.startswith("#")})
    assert all(each == series[0] for each in series)
