"""Names of the scheduler's metrics about nodes, pods and quotas that have a twin under a legacy name.

Source: spec/contract 3.6. Metrics of decisions, which have none, are in `obs.metrics`.
"""

from __future__ import annotations

from typing import Final

GPU_MEMORY_LIMIT: Final = "hami_gpu_memory_limit_bytes"
GPU_CORE_LIMIT: Final = "hami_gpu_core_limit_ratio"
GPU_SHARED_COUNT: Final = "hami_gpu_shared_count"
GPU_CORE_ALLOCATED: Final = "hami_gpu_core_allocated_ratio"
GPU_MEMORY_ALLOCATED: Final = "hami_gpu_memory_allocated_bytes"
NODE_GPU_OVERVIEW: Final = "hami_node_gpu_overview"
NODE_GPU_MEMORY_SHARE: Final = "hami_node_gpu_memory_allocated_ratio"
NODE_GPU_MIG_INSTANCE: Final = "hami_node_gpu_mig_instance_info"
VGPU_MEMORY_ALLOCATED: Final = "hami_vgpu_memory_allocated_bytes"
VGPU_CORE_ALLOCATED: Final = "hami_vgpu_core_allocated_ratio"
QUOTA_USED: Final = "hami_resource_quota_used"
