"""Flags that several processes know: one name, variable, default and meaning for all of them."""

from __future__ import annotations

from typing import Final

from hami.config.flags import Flag, absolute, boolean, duration_s, folder, whole
from hami.vendors.nvidia import folders

KUBECONFIG: Final = Flag(
    "kubeconfig", "kubeconfig file; empty: in-cluster, then ~/.kube/config", "", env="KUBECONFIG", metavar="FILE"
)
NODE_NAME: Final = Flag("node-name", "name of this node's Node object", "", env="NODE_NAME", metavar="NAME")
HOOK_PATH: Final = Flag(
    "hook-path",
    "host folder whose vgpu/ holds the shim and container folders",
    folders.HOOK_PATH,
    folder,
    env="HOOK_PATH",
    metavar="DIR",
)
DRIVER_ROOT: Final = Flag(
    "nvidia-driver-root", "host folder of the driver", "/", absolute, env="NVIDIA_DRIVER_ROOT", metavar="DIR"
)
NVML: Final = Flag("nvml", "real, or sim:PROFILE for a machine without GPUs", "real", metavar="SOURCE")
LEGACY_METRICS: Final = Flag(
    "legacy-metrics", "give metric names of HAMi before 2.9 as well", False, boolean, switch=True
)
NODE_LOCK_TIMEOUT: Final = Flag(
    "node-lock-timeout",
    "age at which a token whose owner is alive but unbound may be taken over",
    300.0,
    duration_s,
    env="HAMI_NODELOCK_EXPIRE",
    metavar="DURATION",
)
VERBOSITY: Final = Flag(
    "v", "log verbosity as klog's: below 3 without filter decisions, above 3 nothing more", 3, whole(0, 10), metavar="N"
)

KLOG: Final = (
    "logtostderr",
    "alsologtostderr",
    "stderrthreshold",
    "vmodule",
    "log_dir",
    "log_file",
    "log_file_max_size",
    "log_backtrace_at",
    "one_output",
    "skip_headers",
    "skip_log_headers",
    "add_dir_header",
)
"""Names of klog's flags that have no effect here."""
