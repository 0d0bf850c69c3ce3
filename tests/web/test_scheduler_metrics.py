"""Port 9395: names and labels of HAMi 2.10, names before 2.9 behind the switch, series that go with their subject."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.core import Metric

from hami.core import keys
from hami.core.codec import MigAllocation, encode_mig_allocations
from hami.core.model import MigPlacement
from hami.core.objects import ObjectMeta, Pod, ResourceQuota, ResourceQuotaSpec
from hami.core.reasons import NODE_UNREGISTERED, Reason
from hami.obs import metrics
from hami.placement.claims import BACKSTOP_S
from hami.placement.engine import Engine
from hami.placement.names import NodeNames
from hami.placement.world import World
from hami.web import refusal_counts
from hami.web.card_metrics import app, snapshot
from tests.placement.fakes import FakeClock, annotated, card, container, make_node, make_pod, make_world
from tests.web.asgi_client import call

CARD: Final = {"zone", "node", "device_uuid", "device_index"}
POD: Final = {"zone", "namespace", "node", "pod", "container_index", "device_uuid"}
CONTRACT: Final = {
    "hami_gpu_memory_limit_bytes": CARD | {"device_type"},
    "hami_gpu_core_limit_ratio": CARD | {"device_type"},
    "hami_gpu_shared_count": CARD | {"device_type"},
    "hami_gpu_core_allocated_ratio": CARD | {"device_type"},
    "hami_node_gpu_memory_allocated_ratio": CARD | {"device_type"},
    "hami_gpu_memory_allocated_bytes": CARD | {"device_type", "device_cores"},
    "hami_node_gpu_overview": CARD | {"device_type", "device_cores", "device_memory_limit"},
    "hami_node_gpu_mig_instance_info": CARD
    | {"mig_uuid", "profile", "gpu_instance_id", "compute_instance_id", "placement_start", "placement_size"},
    "hami_vgpu_memory_allocated_bytes": POD,
    "hami_vgpu_core_allocated_ratio": POD,
    "hami_resource_quota_used": {"zone", "namespace", "quota_name", "limit"},
    "hami_resource_quota_limit": {"zone", "namespace", "quota_name"},
    "hami_build_info": {"version", "revision", "build_date", "go_version", "compiler", "platform"},
}
OLD_CARD: Final = {"zone", "nodeid", "deviceuuid", "deviceidx"}
OLD_POD: Final = {"zone", "podnamespace", "nodename", "podname", "containeridx", "deviceuuid"}
LEGACY: Final = {
    "GPUDeviceMemoryLimit": ("hami_gpu_memory_limit_bytes", OLD_CARD | {"devicetype"}),
    "GPUDeviceCoreLimit": ("hami_gpu_core_limit_ratio", OLD_CARD | {"devicetype"}),
    "GPUDeviceSharedNum": ("hami_gpu_shared_count", OLD_CARD | {"devicetype"}),
    "GPUDeviceCoreAllocated": ("hami_gpu_core_allocated_ratio", OLD_CARD | {"devicetype"}),
    "GPUDeviceMemoryAllocated": ("hami_gpu_memory_allocated_bytes", OLD_CARD | {"devicetype", "devicecores"}),
    "nodeGPUOverview": ("hami_node_gpu_overview", OLD_CARD | {"devicetype", "devicecores", "devicememorylimit"}),
    "nodeGPUMemoryPercentage": ("hami_node_gpu_memory_allocated_ratio", OLD_CARD),
    "nodeGPUMigInstance": ("hami_node_gpu_mig_instance_info", OLD_CARD | {"migname"}),
    "QuotaUsed": ("hami_resource_quota_used", {"zone", "quotanamespace", "quotaName", "limit"}),
    "vGPUMemoryAllocated": ("hami_vgpu_memory_allocated_bytes", OLD_POD),
    "vGPUCoreAllocated": ("hami_vgpu_core_allocated_ratio", OLD_POD),
}
"""Old name -> new name, old labels (spec/scheduler 8)."""


def families(world: World, *, legacy: bool = False) -> dict[str, Metric]:
    return {family.name: family for family in snapshot(world, legacy=legacy).collect()}


def mig_pod(name: str) -> Pod:
    """On its node, with one instance that the plugin made and one that is only chosen."""
    made = MigAllocation(0, 0, "GPU-0", "2g.10gb", MigPlacement(2, 2), "MIG-a", 3, 0)
    chosen = MigAllocation(0, 1, "GPU-0", "1g.5gb", MigPlacement(4, 1))
    reserved = {keys.MIG_ALLOCATIONS: encode_mig_allocations([made, chosen])}
    pod = make_pod(name, container(2), namespace="team", annotations=reserved)
    text = "GPU-0,NVIDIA,9856,0:GPU-0,NVIDIA,4864,0:;"
    return annotated(pod, "mig", text)


def full_world() -> World:
    """A card that is shared, a MIG card, a quota."""
    world = make_world()
    world.on_node(make_node("n1", [card(1)]))
    world.on_node(make_node("mig", [card(0, mode="mig", type="NVIDIA A100-SXM4-40GB")]))
    quota = ResourceQuotaSpec(hard={"limits.nvidia.com/gpumem": "9000"})
    world.quotas.apply(ResourceQuota(metadata=ObjectMeta(name="q", namespace="team"), spec=quota))
    pod = make_pod("p", container(1, memory_mib=1000, cores=30), namespace="team")
    assert Engine(world).filter(pod, NodeNames.of(["n1"])).node == "n1"
    world.on_pod(mig_pod("m"))
    return world


@pytest.mark.parametrize("name", CONTRACT)
def test_names_and_labels_are_those_of_the_contract(name: str) -> None:
    family = families(full_world())[name]
    assert family.type == "gauge"
    assert family.samples
    assert {frozenset(sample.labels) for sample in family.samples} == {frozenset(CONTRACT[name])}


def test_values_have_the_contracts_ranges() -> None:
    found = families(full_world())

    def value(name: str, **labels: str) -> float:
        matching = [s.value for s in found[name].samples if labels.items() <= s.labels.items()]
        assert len(matching) == 1, name
        return matching[0]

    assert value("hami_gpu_memory_limit_bytes", node="n1") == 16384 * 1024 * 1024
    assert value("hami_gpu_memory_allocated_bytes", node="n1") == 1000 * 1024 * 1024
    assert value("hami_gpu_core_allocated_ratio", node="n1") == 30
    assert value("hami_node_gpu_memory_allocated_ratio", node="n1") == 1000 / 16384
    assert value("hami_vgpu_core_allocated_ratio", pod="p") == 30
    mig = {"mig_uuid": "MIG-a", "profile": "2g.10gb", "gpu_instance_id": "3", "placement_start": "2"}
    assert value("hami_node_gpu_mig_instance_info", **mig) == 1, (
        "the instance that was made, not the one that was chosen"
    )


def test_what_cannot_be_read_is_counted_by_kind_and_its_nodes_are_out() -> None:
    world = make_world()
    for number in range(4):
        world.on_node(make_node(f"n{number}"))
    for number in range(2):
        world.on_node(make_node(f"broken{number}", register="[{"))
    world.on_node(make_node("plain", register=""))
    for name in "abc":
        world.on_pod(annotated(make_pod(name), "n1", "cannot be read"))
    found = families(world)
    kinds = {sample.labels["kind"]: sample.value for sample in found["hami_scheduler_undecodable"].samples}
    assert kinds == {"register": 2, "allocation": 3}
    assert [sample.value for sample in found["hami_scheduler_nodes_out"].samples] == [3]


def test_legacy_names_are_off_by_default() -> None:
    assert not LEGACY.keys() & families(full_world()).keys()


@pytest.mark.parametrize("name", LEGACY)
def test_a_legacy_name_has_the_values_of_the_new_one(name: str) -> None:
    new_name, labels = LEGACY[name]
    found = families(full_world(), legacy=True)
    old, new = found[name], found[new_name]
    assert {frozenset(sample.labels) for sample in old.samples} == {frozenset(labels)}
    assert [sample.value for sample in old.samples] == [sample.value for sample in new.samples]
    assert {s.labels["zone"] for s in old.samples} == {"vGPU"}


@pytest.mark.parametrize("legacy", [False, True])
def test_series_go_with_what_they_speak_of(legacy: bool) -> None:
    world = full_world()
    world.on_pod_deleted("team", "p", "uid-p")
    world.on_pod_deleted("team", "m", "uid-m")
    world.quotas.remove("team", "q")
    for name in ("n1", "mig"):
        world.on_node_deleted(name)
    left = {name: family.samples for name, family in families(world, legacy=legacy).items()}
    for name in (CONTRACT.keys() | LEGACY.keys()) - {"hami_build_info"}:
        assert not left.get(name), name


async def test_the_listener_gives_decisions_and_cards() -> None:
    metrics.refused_nodes.labels("CardInsufficientMemory").inc(0)
    page = (await call(app(full_world(), {}, legacy=True), "/metrics", method="GET")).body.decode()
    wanted = [
        'hami_gpu_shared_count{device_index="1"',
        'GPUDeviceSharedNum{deviceidx="1"',
        'hami_scheduler_refused_nodes_total{reason="CardInsufficientMemory"}',
        "hami_scheduler_token_wait_seconds_bucket",
        "hami_scheduler_verb_seconds",
        "hami_scheduler_reservations_expired",
    ]
    assert [each for each in wanted if each not in page] == []


class Watch:
    """What a reflector counts."""

    def __init__(self, lists: int, heard_s_ago: float) -> None:
        self.lists = lists
        self.last_heard_monotonic_s = time.monotonic() - heard_s_ago


async def test_staleness_relists_and_expiries_have_their_numbers() -> None:
    clock = FakeClock()
    world = make_world(clock)
    world.on_node(make_node("n1"))
    for name in "ab":
        assert Engine(world).filter(make_pod(name, container(1)), NodeNames.of(["n1"])).node == "n1"
    clock.advance(BACKSTOP_S + 1)
    stats = {"nodes": Watch(3, 50.0), "pods": Watch(1, 5000.0)}
    page = (await call(app(world, stats), "/metrics", method="GET")).body.decode()
    value = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[:1] != "#"}
    assert value["hami_scheduler_reservations_expired"] == 2
    assert [value[f'hami_scheduler_relists{{kind="{kind}"}}'] for kind in stats] == [3, 1]
    ages = [value[f'hami_scheduler_last_event_age_seconds{{kind="{kind}"}}'] for kind in stats]
    assert 50 <= ages[0] < 5000 <= ages[1]


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("2/2 CardInsufficientMemory", ("CardInsufficientMemory",)),
        ("1/2 CardNotHealth, 1/2 CardTypeMismatch", ("CardNotHealth", "CardTypeMismatch")),
        (NODE_UNREGISTERED, (refusal_counts.UNREGISTERED,)),
        (f"{NODE_UNREGISTERED}: the device plugin has been silent for 90 s", (refusal_counts.UNREGISTERED,)),
        (Reason.NODE_INSUFFICIENT_DEVICE, ("NodeInsufficientDevice",)),
        ("takes no new shares: pod a/b annotation x: empty", (refusal_counts.OTHER,)),
        ("", (refusal_counts.OTHER,)),
    ],
)
def test_reasons_of_a_nodes_text(text: str, reasons: tuple[str, ...]) -> None:
    assert refusal_counts.reasons_of(text) == reasons


def test_every_refused_node_is_counted() -> None:
    def counted() -> dict[str, float]:
        names_ = ("CardInsufficientMemory", refusal_counts.UNREGISTERED)
        get = metrics.registry.get_sample_value
        return {each: get("hami_scheduler_refused_nodes_total", {"reason": each}) or 0.0 for each in names_}

    world = make_world()
    for number in range(3):
        world.on_node(make_node(f"n{number}"))
    offered = [f"n{number}" for number in range(3)] + ["stranger"]
    answer = Engine(world).filter(make_pod("big", container(1, memory_mib=99_999)), NodeNames.of(offered))
    before = counted()
    refusal_counts.count(answer.failed)
    assert {each: value - before[each] for each, value in counted().items()} == {
        "CardInsufficientMemory": 3,
        refusal_counts.UNREGISTERED: 1,
    }


def test_the_reference_page_names_every_metric_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "scheduler-metrics.md").read_text()
    named = set(re.findall(r"`((?:hami_|GPU|nodeGPU|vGPU|Quota)[A-Za-z_]+)`", page))
    ours = {family.name + ("_total" if family.type == "counter" else "") for family in metrics.registry.collect()}
    assert named == ours | families(full_world(), legacy=True).keys()
