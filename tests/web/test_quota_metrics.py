"""Quota series on port 9395 (spec/contract 3.6): only where a limit is set, gone with it."""

from __future__ import annotations

from prometheus_client import generate_latest

from hami.core.objects import ObjectMeta, ResourceQuota, ResourceQuotaSpec
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from hami.web.card_metrics import snapshot
from tests.placement.fakes import container, make_node, make_pod, make_world


def series(world: World) -> list[str]:
    return [
        line
        for line in generate_latest(snapshot(world)).decode().splitlines()
        if line.startswith("hami_resource_quota")
    ]


def test_used_and_limit() -> None:
    world = make_world()
    world.on_node(make_node("n1"))
    assert series(world) == []
    hard = {"limits.nvidia.com/gpumem": "9000", "limits.nvidia.com/gpucores": "200", "pods": "3"}
    world.quotas.apply(
        ResourceQuota(metadata=ObjectMeta(name="q", namespace="team"), spec=ResourceQuotaSpec(hard=dict(hard)))
    )
    pod = make_pod("p", container(2, memory_mib=1000, cores=30), namespace="team")
    assert Engine(world).filter(pod, NodeNames.of(["n1"])).node == "n1"
    labels = 'namespace="team",quota_name="nvidia.com/{}"'
    memory, cores = labels.format("gpumem"), labels.format("gpucores")
    expected = {
        f'hami_resource_quota_limit{{{memory},zone="vGPU"}} 9000.0',
        f'hami_resource_quota_limit{{{cores},zone="vGPU"}} 200.0',
        f'hami_resource_quota_used{{limit="9000",{memory},zone="vGPU"}} 2000.0',
        f'hami_resource_quota_used{{limit="200",{cores},zone="vGPU"}} 60.0',
    }
    assert set(series(world)) == expected
    world.quotas.remove("team", "q")
    assert series(world) == []
