"""The `nvidia` section of device-config.yaml as a frozen value (spec/scheduler 7.2). Defaults are the chart's."""

from __future__ import annotations

import msgspec


class MigAllowlistEntry(msgspec.Struct, frozen=True):
    """Profiles that cards may use whose registered name contains one of `models`."""

    models: tuple[str, ...]
    profiles: tuple[str, ...]


class NvidiaConfig(msgspec.Struct, frozen=True):
    """Resource names, defaults and scaling. Memory is MiB; names are the keys of the file in our spelling."""

    resource_count_name: str = "nvidia.com/gpu"
    resource_memory_name: str = "nvidia.com/gpumem"
    resource_memory_percentage_name: str = "nvidia.com/gpumem-percentage"
    resource_core_name: str = "nvidia.com/gpucores"
    resource_priority_name: str = "nvidia.com/priority"
    overwrite_env: bool = False
    """Containers without devices get NVIDIA_VISIBLE_DEVICES=none."""
    default_memory: int = 0
    default_cores: int = 0
    default_gpu_num: int = 1
    """Count for containers that ask for memory or cores only; 0 refuses them."""
    memory_factor: int = 1
    """MiB per unit of the memory resource."""
    device_split_count: int = 10
    device_memory_scaling: float = 1.0
    device_core_scaling: float = 1.0
    pre_configured_device_memory: int = 0
    lib_cuda_log_level: str = "1"
    enable_numa_topology: bool = False
    disable_core_limit: bool = False
    gpu_core_policy: str = "default"
    runtime_class_name: str = ""
    mig_profile_allowlist: tuple[MigAllowlistEntry, ...] = ()

    @property
    def resource_names(self) -> tuple[str, ...]:
        """Count, memory, percentage, cores, priority."""
        return (
            self.resource_count_name,
            self.resource_memory_name,
            self.resource_memory_percentage_name,
            self.resource_core_name,
            self.resource_priority_name,
        )
