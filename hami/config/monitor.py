"""Settings of `hami monitor`. Flags and variables are upstream's where it has them (spec/node 6.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from hami.config import flags, shared_flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError
from hami.vendors.nvidia.folders import VGPU
from hami.web.server import Address, parse_address


class MonitorProcessSettings(msgspec.Struct, frozen=True):
    """Everything that `hami monitor` is told."""

    kubeconfig: str
    node_name: str
    vgpu_dir: Path
    metrics_listen: Address
    legacy_metrics: bool
    look_interval_s: float
    resync_interval_s: float
    nvml: str
    driver_root: str
    verbosity: int


FLAGS: Final = (
    shared_flags.KUBECONFIG,
    shared_flags.NODE_NAME,
    msgspec.structs.replace(shared_flags.HOOK_PATH, help="the device plugin's hook path, or the folder vgpu in it"),
    Flag("metrics-bind-address", "listener of /metrics and /healthz", ":9394", metavar="ADDRESS"),
    shared_flags.LEGACY_METRICS,
    Flag(
        "look-interval",
        "how often containers are looked at and told to wait or go on",
        5.0,
        flags.longer_than(0.01),
        metavar="DURATION",
    ),
    Flag(
        "resync-interval",
        "how long a container's folder stays without its pod",
        300.0,
        flags.duration_s,
        env="HAMI_RESYNC_INTERVAL",
        metavar="DURATION",
    ),
    shared_flags.NVML,
    shared_flags.DRIVER_ROOT,
    shared_flags.VERBOSITY,
)


def load(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[MonitorProcessSettings, list[str]]:
    """Settings and the ignored flags that were given. Raises ConfigError."""
    values, ignored = flags.parse(
        "hami monitor", "Metrics of a GPU node and its containers.", FLAGS, argv, environment, ignored=shared_flags.KLOG
    )
    if not values["node_name"]:
        raise ConfigError("--node-name is required: the name of this node")
    settings = MonitorProcessSettings(
        kubeconfig=values["kubeconfig"],
        node_name=values["node_name"],
        vgpu_dir=vgpu_dir(Path(values["hook_path"])),
        metrics_listen=parse_address(values["metrics_bind_address"], default_https=False, flag="metrics-bind-address"),
        legacy_metrics=values["legacy_metrics"],
        look_interval_s=values["look_interval"],
        resync_interval_s=values["resync_interval"],
        nvml=values["nvml"],
        driver_root=values["nvidia_driver_root"],
        verbosity=values["v"],
    )
    return settings, ignored


def vgpu_dir(hook_path: Path) -> Path:
    """Upstream's monitor is told `<hook path>/vgpu` where its plugin is told `<hook path>` (spec/node 6.1): either."""
    return hook_path if hook_path.name == VGPU else hook_path / VGPU
