"""Quotas in admission, `/filter` and bind; use follows the ledger (reports B17, B19, B20, B52, B73)."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest

from hami.core.model import Policies, Use
from hami.core.objects import ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec
from hami.placement.answers import FilterAnswer
from hami.placement.engine import Engine, Steps
from hami.placement.names import NodeNames
from hami.placement.namespace_use import by_word
from hami.placement.shapes import Shapes
from hami.placement.world import World
from tests.placement.fakes import annotated, card, container, make_node, make_pod, make_world

MEM, CORES = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"


def quota(name: str = "q", namespace: str = "default", *, mem: str = "", cores: str = "") -> ResourceQuota:
    hard = {key: value for key, value in ((MEM, mem), (CORES, cores)) if value}
    return ResourceQuota(metadata=ObjectMeta(name=name, namespace=namespace), spec=ResourceQuotaSpec(hard=dict(hard)))


@pytest.fixture
def world() -> World:
    world = make_world()
    for number in range(3):
        world.on_node(make_node(f"n{number}", 4))
    return world


@pytest.fixture
def engine(world: World) -> Engine:
    return Engine(world)


NAMES = NodeNames.of(["n0", "n1", "n2"])


def placed(engine: Engine, pod: Pod) -> bool:
    return engine.filter(pod, NAMES).node is not None


def advice(world: World, pod: Pod, *, slices_possible: bool = False) -> str:
    shape = Shapes(world.registry, Policies()).of(pod)
    refusal = world.quotas.advise(pod.metadata.namespace, shape, slices_possible=slices_possible)  # type: ignore[arg-type]
    return refusal.message if refusal is not None else ""


async def test_twenty_at_once_against_room_for_five(engine: Engine, world: World) -> None:
    world.quotas.apply(quota(mem="5000"))
    pods = [make_pod(f"p{number}", container(memory_mib=1000)) for number in range(20)]
    answers = await asyncio.gather(*(engine.filter_sliced(pod, NAMES) for pod in pods))
    assert sum(answer.node is not None for answer in answers) == 5
    assert world.ledger.namespaces.of("default")["NVIDIA"] == Use(5, 5000, 0)
    refused = next(answer for answer in answers if answer.node is None)
    assert refused.failed == dict.fromkeys(NAMES.list(), "4/4 ResourceQuotaNotFit")
    assert refused.events[0][2] == (
        "exceeding resource quota q in namespace default: nvidia.com/gpumem"
        " used 5000 MiB, requested 1000 MiB, limit 5000 MiB"
    )
    assert refused.events[1][2] == "3 nodes ResourceQuotaNotFit(n0,n1,n2)"


async def test_control_without_the_quota_all_twenty_fit(engine: Engine) -> None:
    pods = [make_pod(f"p{number}", container(memory_mib=1000)) for number in range(20)]
    answers = await asyncio.gather(*(engine.filter_sliced(pod, NAMES) for pod in pods))
    assert all(answer.node is not None for answer in answers)


async def test_filters_in_steps_see_each_others_reservations(world: World) -> None:
    """Nodes that refuse make decisions give way between evaluation and reservation."""
    for number in range(3):
        world.on_node(make_node(f"n{number}", [card(0, memory_mib=500), card(1, memory_mib=500), card(2)], version=2))
    engine = Engine(world)
    world.quotas.apply(quota(mem="3000"))
    pods = [make_pod(f"p{number}", container(2, memory_mib=400), container(memory_mib=800)) for number in range(6)]
    steps = [engine._steps(pod, NAMES) for pod in pods]
    answers = {}
    rng = Random(7)
    while steps:
        at = rng.randrange(len(steps))
        try:
            next(steps[at])
        except StopIteration as done:
            answers[id(steps.pop(at))] = done.value
    assert sum(answer.node is not None for answer in answers.values()) == 1
    assert world.ledger.namespaces.of("default")["NVIDIA"].memory_mib <= 3000


def test_a_decision_that_gave_way_asks_the_quota_again(world: World) -> None:
    """Both pods looked at a node that refuses them before either has reserved: there is room for one."""
    full = [card(0, type="NVIDIA V100"), card(1, type="NVIDIA V100")]
    world.on_node(make_node("first", full, version=2))
    world.on_pod(annotated(make_pod("old"), "first", "GPU-0,NVIDIA,9000,0:;"))
    engine = Engine(world)
    world.quotas.apply(quota(mem="12000"))
    notes = {"nvidia.com/use-gputype": "A100"}
    pods = [make_pod(f"p{size}", container(memory_mib=size), annotations=notes) for size in (2900, 3000)]
    steps = [engine._steps(pod, NodeNames.of(["first", "n0"])) for pod in pods]
    for each in steps:
        next(each)
    assert world.ledger.namespaces.of("default")["NVIDIA"].memory_mib == 9000, "neither has reserved"
    assert [ended(each).node for each in steps] == ["n0", None]


def ended(steps: Steps) -> FilterAnswer:
    """The answer of a decision that goes on without giving way again."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            answer: FilterAnswer = done.value
            return answer


@pytest.mark.parametrize(
    ("limit", "pod", "known"),
    [
        ("2000", make_pod("p", container(memory_mib=1024), container(memory_mib=1024, name="d")), 2048),
        ("4096", make_pod("p", container(2, memory_mib=2500)), 5000),
    ],
)
def test_B17_several_containers_and_cards(world: World, engine: Engine, limit: str, pod: Pod, known: int) -> None:
    world.quotas.apply(quota(mem=limit))
    assert advice(world, pod).startswith(
        "exceeding resource quota q in namespace default: nvidia.com/gpumem used 0 MiB"
    )
    assert f"requested {known} MiB, limit {limit} MiB" in advice(world, pod)
    assert not placed(engine, pod)


def test_B19_unset_and_percentage_count_once_the_card_is_known(world: World, engine: Engine) -> None:
    world.quotas.apply(quota(mem="10000"))
    whole = make_pod("whole", container())
    assert advice(world, whole) == ""
    assert engine.filter(whole, NAMES).failed["n0"] == "4/4 ResourceQuotaNotFit"
    assert placed(engine, make_pod("small", container(memory_mib=1000)))
    events = engine.filter(make_pod("another", container()), NAMES).events
    assert "used 1000 MiB, requested 16384 MiB, limit 10000 MiB" in events[0][2]


def test_B20_zero_blocks_and_updates_leave_no_gap(world: World, engine: Engine) -> None:
    world.quotas.apply(quota(mem="0"))
    pod = make_pod("p", container(memory_mib=1))
    assert advice(world, pod)
    for _ in range(20):
        world.quotas.apply(quota(mem="0"))
        assert not placed(engine, pod)
    world.quotas.remove("default", "q")
    assert placed(engine, pod)


def test_the_smallest_of_several_objects_holds(world: World, engine: Engine) -> None:
    world.quotas.replace([quota("a", mem="9000"), quota("b", mem="1000"), quota("c", "team", mem="0")])
    assert not placed(engine, make_pod("p", container(memory_mib=1001)))
    world.quotas.remove("default", "b")
    assert placed(engine, make_pod("p", container(memory_mib=1001)))
    world.quotas.replace([])
    assert placed(engine, make_pod("t", container(memory_mib=1001), namespace="team"))


def test_cores_and_other_namespaces(world: World, engine: Engine) -> None:
    world.quotas.apply(quota(cores="50"))
    assert placed(engine, make_pod("a", container(cores=30, memory_mib=1)))
    assert not placed(engine, make_pod("b", container(cores=30, memory_mib=1)))
    assert placed(engine, make_pod("c", container(cores=60, memory_mib=1), namespace="team")), "not limited"
    world.quotas.apply(quota(namespace="team", cores="100"))
    assert placed(engine, make_pod("d", container(cores=40, memory_mib=1), namespace="team"))
    assert not placed(engine, make_pod("e", container(cores=1, memory_mib=1), namespace="team"))
    assert "nvidia.com/gpucores used 30 %" in advice(world, make_pod("b", container(cores=30, memory_mib=1)))
    assert advice(world, make_pod("b", container(cores=30, memory_mib=1)), slices_possible=True) == ""


def test_refusals_follow_the_room(world: World, engine: Engine) -> None:
    """A cached refusal does not outlive the room that it was made for, in both directions."""
    world.quotas.apply(quota(mem="2000"))
    held, asking = make_pod("held", container(memory_mib=1500)), make_pod("p", container(memory_mib=1000))
    assert placed(engine, held)
    assert not placed(engine, asking)
    world.on_pod_deleted("default", "held", "uid-held")
    assert placed(engine, asking)
    assert not placed(engine, make_pod("q", container(memory_mib=1001)))


def test_B52_B73_use_is_given_back_once(world: World, engine: Engine) -> None:
    pod = make_pod("p", container(memory_mib=1000, cores=10))
    assert placed(engine, pod)
    assert placed(engine, pod)
    assert world.ledger.namespaces.of("default") == {"NVIDIA": Use(1, 1000, 10)}
    world.on_pod(annotated(pod, "n0", "GPU-0,NVIDIA,1000,10:;"))
    assert world.ledger.namespaces.of("default") == {"NVIDIA": Use(1, 1000, 10)}
    for _ in range(2):
        world.on_pod_deleted("default", "p", "uid-p")
        assert world.ledger.namespaces.of("default") == {}


def test_use_is_the_sum_of_claims_whatever_happens(world: World, engine: Engine) -> None:
    rng = Random(3)
    for number in range(300):
        name, namespace = f"p{rng.randrange(12)}", rng.choice(("default", "team"))
        pod = make_pod(name, container(rng.randint(1, 2), memory_mib=rng.choice((100, 700))), namespace=namespace)
        pod = msgspec.structs.replace(
            pod, metadata=msgspec.structs.replace(pod.metadata, uid=f"uid-{name}-{namespace}")
        )
        match rng.randrange(4):
            case 0 | 1:
                engine.filter(pod, NAMES)
            case 2:
                world.on_pod(annotated(pod, "n1", "GPU-1,NVIDIA,300,7:;" if number % 3 else "?", bound=number % 2 == 0))
            case 3:
                world.on_pod_deleted(namespace, name, pod.metadata.uid)
        for space in ("default", "team"):
            expected: dict[str, Use] = {}
            for claim in world.ledger.claims():
                for word, use in by_word(claim).items() if claim.namespace == space else ():
                    expected[word] = expected.get(word, Use()).plus(use)
            assert world.ledger.namespaces.of(space) == expected


async def test_autoscalers_are_told_about_the_quota(world: World, engine: Engine) -> None:
    """More nodes do not help a namespace that has used up its quota (spec/scheduler 4.9)."""
    pod = make_pod("p", container(memory_mib=1000))
    assert (await engine.simulate(pod, [make_node("new")])).node == "new"
    world.quotas.apply(quota(mem="500"))
    assert (await engine.simulate(pod, [make_node("new")])).failed == {"new": "2/2 ResourceQuotaNotFit"}


def test_status_updates_are_no_change(world: World) -> None:
    """Kubernetes' own controller writes the status at every pod; only limits wake pods that wait."""
    assert world.quotas.apply(quota(mem="500"))
    assert not world.quotas.apply(quota(mem="500"))
    assert not world.quotas.replace([quota(mem="500")])
    assert not world.quotas.apply(quota("larger", mem="900"))
    assert not world.quotas.remove("default", "larger")
    assert world.quotas.apply(quota(mem="501"))
    assert world.quotas.remove("default", "q")
    assert not world.quotas.remove("default", "q")
