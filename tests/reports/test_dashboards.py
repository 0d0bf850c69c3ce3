"""HAMi's dashboards and metrics reference (HAMi #2301, #2852, #2922, website #859): what they ask for, we give."""

from __future__ import annotations

import re

import pytest

from hami.monitor import metrics
from hami.web.node_families import NODE_FAMILIES

CONTAINERS = {family.name: metrics.CONTAINER_LABELS for family in metrics.container_families([], 0)}
GIVEN: dict[str, frozenset[str]] = (
    {name: frozenset(labels) for name, labels in CONTAINERS.items()}
    | {family.name: frozenset(family.labels) for family in NODE_FAMILIES}
    | {family.name: frozenset(metrics.HOST_LABELS) for family in metrics.host_families("n", [])}
    | {(family := metrics.mig_family([])).name: frozenset((*metrics.CONTAINER_LABELS, *metrics.MIG_LABELS))}
)
CARD = "node device_uuid device_index"
USE = "namespace pod container vdevice_index device_uuid"

QUERIES = [
    ('count(hami_gpu_memory_limit_bytes{node=~"$node"})', CARD),
    ('sum(hami_gpu_memory_allocated_bytes{node=~"$node"})', f"{CARD} device_cores device_type"),
    ("sum by (node) (hami_gpu_memory_limit_bytes) - sum by (node) (hami_gpu_memory_allocated_bytes)", "node"),
    ("hami_gpu_core_limit_ratio - hami_gpu_core_allocated_ratio", f"{CARD} device_type"),
    ('sum(hami_gpu_shared_count{node=~"$node"})', CARD),
    ('hami_node_gpu_memory_allocated_ratio{node=~"$node"}', CARD),
    ("hami_node_gpu_overview", f"{CARD} device_cores device_memory_limit device_type"),
    ("count by (profile) (hami_node_gpu_mig_instance_info)", f"{CARD} mig_uuid profile placement_start placement_size"),
    ("sum by (namespace) (hami_vgpu_memory_allocated_bytes)", "namespace node pod container_index device_uuid"),
    ("sum by (namespace) (hami_vgpu_core_allocated_ratio)", "namespace node pod container_index device_uuid"),
    (
        'hami_host_gpu_memory_used_bytes and on (device_uuid) hami_gpu_memory_limit_bytes{node=~"$node"}',
        "device_type device_index device_uuid",
    ),
    ('hami_host_gpu_utilization_ratio{node=~"$node"}', f"{CARD} device_type"),
    ('topk(10, hami_vgpu_memory_used_bytes{namespace=~"$namespace"})', USE),
    ("100 * hami_vgpu_memory_used_bytes / hami_vgpu_memory_limit_bytes", USE),
    ("hami_container_device_utilization_ratio + hami_container_device_memory_bytes", USE),
    ("hami_vgpu_memory_buffer_bytes + hami_vgpu_memory_context_bytes + hami_vgpu_memory_module_bytes", USE),
    ("hami_container_last_kernel_elapsed_seconds > 3600", USE),
    ("hami_mig_device_info", f"{USE} mig_uuid profile gpu_instance_id compute_instance_id"),
]


@pytest.mark.parametrize(("query", "labels"), QUERIES)
def test_what_a_panel_asks_for_is_there(query: str, labels: str) -> None:
    asked = re.findall(r"hami_\w+", query)
    assert asked
    for name in asked:
        assert name in GIVEN
        assert set(labels.split()) <= GIVEN[name]


@pytest.mark.parametrize(
    "query", [query for query, _ in QUERIES if re.search(r" [-+/] ", query) and " by " not in query]
)
def test_both_sides_of_a_sum_or_quotient_match(query: str) -> None:
    """Without `on` only series with the same labels meet; others give an empty panel and no error."""
    assert len({GIVEN[name] for name in re.findall(r"hami_\w+", query)}) == 1
