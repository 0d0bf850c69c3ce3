"""Other rules from one tick to the next: shapes, refusals, quotas and registrations change together."""

from __future__ import annotations

import msgspec

from hami.core.device_type import Registry
from hami.core.objects import Container, NodeStatus, ObjectMeta, ResourceQuota, ResourceQuotaSpec, ResourceRequirements
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.device import Nvidia
from tests.placement.fakes import COUNT, container, make_node, make_pod, make_world

OTHER = "corp.com/gpu"


def rules(**config: object) -> Registry:
    return (Nvidia(msgspec.structs.replace(NvidiaConfig(), **config)),)


def offering(name: str, **allocatable: str) -> object:
    return msgspec.structs.replace(
        make_node(name),
        status=NodeStatus(allocatable={key.replace("_", "/"): text for key, text in allocatable.items()}),
    )


def asks(resource: str, count: int = 1) -> Container:
    return Container(name="c", resources=ResourceRequirements(limits={resource: str(count)}))


def chosen(world: World, name: str, *containers: Container) -> str | None:
    return Engine(world).filter(make_pod(name, *containers), NodeNames.of(world.inventory.names())).node


def test_requests_are_read_by_the_new_rules_and_no_memo_stays() -> None:
    world = make_world()
    world.on_node(make_node("n1"))
    engine = Engine(world)
    big = container(1, memory_mib=20)
    names = NodeNames.of(["n1"])
    world.take_rules(rules(memory_factor=1000))
    assert engine.filter(make_pod("p", big), names).node is None
    world.take_rules(rules(memory_factor=10))
    answer = engine.filter(make_pod("p", big), names)
    assert answer.node == "n1"
    claim = world.ledger.get("uid-p")
    assert claim is not None
    assert [use.memory_mib for _, use in claim.charges] == [200]


def test_what_is_booked_stays_booked() -> None:
    world = make_world()
    world.on_node(make_node("n1", 1))
    assert chosen(world, "p", container(1, memory_mib=16000)) == "n1"
    before = dict(world.ledger.uses("n1"))
    world.take_rules(rules(memory_factor=10, resource_count_name=OTHER))
    world.settle_now()
    assert dict(world.ledger.uses("n1")) == before
    assert chosen(world, "q", asks(OTHER)) is None, "the card is full"


def test_a_renamed_resource_brings_what_kubelet_offers_under_that_name() -> None:
    """Nodes do not come again for it: what they offered is known from their newest state."""
    world = make_world()
    world.on_node(make_node("quiet"))
    world.on_node(offering("old", **{"nvidia.com_gpu": "20"}))  # type: ignore[arg-type]
    world.on_node(offering("both", **{"nvidia.com_gpu": "20", "corp.com_gpu": "0"}))  # type: ignore[arg-type]
    world.on_node(offering("moved", **{"nvidia.com_gpu": "0", "corp.com_gpu": "20"}))  # type: ignore[arg-type]
    world.settle_now()
    assert problems(world) == {"moved"}
    world.take_rules(rules(resource_count_name=OTHER))
    world.settle_now()
    assert problems(world) == {"both"}
    assert chosen(world, "p", asks(COUNT)) is None, "the old name is nobody's"
    assert chosen(world, "q", asks(OTHER)) in {"moved", "old", "quiet"}
    world.take_rules(rules())
    world.settle_now()
    assert problems(world) == {"moved"}, "and back"


def problems(world: World) -> set[str]:
    views = {name: world.view(name) for name in world.inventory.names()}
    return {name for name, view in views.items() if view is not None and view.problem}


def test_quotas_are_read_under_the_new_names() -> None:
    world = make_world()
    world.on_node(make_node("n1"))
    hard = {"limits.corp.com/mem": "1000", "limits.nvidia.com/gpumem": "5000"}
    world.quotas.apply(
        ResourceQuota(metadata=ObjectMeta(name="q", namespace="default"), spec=ResourceQuotaSpec(hard=dict(hard)))
    )
    assert chosen(world, "p", container(1, memory_mib=2000)) == "n1"
    world.take_rules(rules(resource_memory_name="corp.com/mem"))
    limits = dict(world.quotas.limits())["default"]
    assert [limit.value for vendor in limits if (limit := vendor.memory) is not None] == [1000]
    assert world.quotas.overdrawn("default")


async def test_a_filter_that_is_under_way_ends_by_one_set_of_rules() -> None:
    """Rules come between two slices of a refusal: the answer is whole, and the next one is by the new rules."""
    world = make_world()
    for number in range(600):
        world.on_node(make_node(f"n{number}", 1))
    engine = Engine(world)
    pod = make_pod("p", container(1, memory_mib=99_999))
    steps = engine._steps(pod, NodeNames.of(world.inventory.names()))
    next(steps)
    world.take_rules(rules(memory_factor=2))
    try:
        while True:
            next(steps)
    except StopIteration as done:
        answer = done.value
    assert answer.node is None
    assert len(answer.failed) == 600
    small = make_pod("small", container(1, memory_mib=8000))
    found = await engine.filter_sliced(small, NodeNames.of(world.inventory.names()))
    assert found.node is not None
    claim = world.ledger.get("uid-small")
    assert claim is not None
    assert [use.memory_mib for _, use in claim.charges] == [16000]
