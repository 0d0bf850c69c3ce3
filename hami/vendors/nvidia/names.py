"""NVIDIA's names on the wire: annotation keys, environment variables, modes.

Source: spec/contract 3.2, 3.3, 3.8, spec/node 2.9, 2.10. Resource names can be renamed and live in `config`.
"""

from __future__ import annotations

from typing import Final

WORD: Final = "NVIDIA"

REGISTER_KEY: Final = "hami.io/node-nvidia-register"
HANDSHAKE_KEY: Final = "hami.io/node-handshake"
SCORE_KEY: Final = "hami.io/node-nvidia-score"
RECOVERED_KEY: Final = "hami.io/card-recovered"
"""Operator to plugin: cards of the node that may be used again, by uuid or `all`. Ours alone."""
TO_ALLOCATE_KEY: Final = "hami.io/vgpu-devices-to-allocate"
ALLOCATED_KEY: Final = "hami.io/vgpu-devices-allocated"

DOMAIN: Final = "nvidia.com/"
"""Of NVIDIA's own plugin and of static MIG, whatever our resources are called."""
MIG_RESOURCE_PREFIX: Final = f"{DOMAIN}mig-"
"""Followed by a profile: the resources of MIG devices under strategy mixed, as NVIDIA's plugin names them."""

USE_TYPE: Final = "nvidia.com/use-gputype"
NOUSE_TYPE: Final = "nvidia.com/nouse-gputype"
USE_UUID: Final = "nvidia.com/use-gpuuuid"
NOUSE_UUID: Final = "nvidia.com/nouse-gpuuuid"
NUMA_BIND: Final = "nvidia.com/numa-bind"
VGPU_MODE: Final = "nvidia.com/vgpu-mode"

MODE_CORE: Final = "hami-core"
MODE_MIG: Final = "mig"
MODE_MPS: Final = "mps"
MODES: Final = (MODE_CORE, MODE_MIG, MODE_MPS)

ENV_VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
ENV_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
"""Followed by `_<i>` for the i-th card of the container."""
ENV_SM_LIMIT: Final = "CUDA_DEVICE_SM_LIMIT"
ENV_SHARED_CACHE: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
ENV_OVERSUBSCRIBE: Final = "CUDA_OVERSUBSCRIBE"
ENV_TASK_PRIORITY: Final = "CUDA_TASK_PRIORITY"
ENV_CORE_POLICY: Final = "GPU_CORE_UTILIZATION_POLICY"
ENV_LOG_LEVEL: Final = "LIBCUDA_LOG_LEVEL"
ENV_DISABLE_CONTROL: Final = "CUDA_DISABLE_CONTROL"
ENV_PRELOAD: Final = "LD_PRELOAD"
ENV_AUDIT: Final = "LD_AUDIT"
ENV_GDRCOPY: Final = "NVIDIA_GDRCOPY"
ENV_GDS: Final = "NVIDIA_GDS"
ENV_MOFED: Final = "NVIDIA_MOFED"
