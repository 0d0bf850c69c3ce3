"""Settings of `hami device-plugin`. Flags and variables are upstream's where it has them (spec/node 1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from hami.config import flags, shared_flags
from hami.config.flags import Flag
from hami.core.errors import ConfigError
from hami.deviceplugin.settings import KUBELET_DIR, Recovery
from hami.vendors.nvidia import folders
from hami.vendors.nvidia.names import ENV_GDRCOPY, ENV_GDS, ENV_MOFED
from hami.web.server import Address, parse_address

RECOVERIES: Final = tuple(each.value for each in Recovery)
STRATEGIES: Final = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")


class DevicePluginSettings(msgspec.Struct, frozen=True):
    """Everything that `hami device-plugin` is told."""

    kubeconfig: str
    node_name: str
    device_config_file: Path
    node_config_file: Path | None
    kubelet_dir: Path
    hook_path: Path
    container_hook_path: Path | None
    cdi_root: Path
    lock_dir: Path
    nvml: str
    device_list_strategies: tuple[str, ...]
    device_id_strategy: str
    mig_strategy: str
    pass_device_specs: bool
    cdi_annotation_prefix: str
    driver_root: str
    driver_root_here: str
    cdi_hook_path: str
    heartbeat: str
    register_format: str
    topology_score: bool
    ops_listen: Address | None
    cleanup: bool
    dev_root: str
    feature_envs: tuple[tuple[str, str], ...]
    allow_disable_control: bool
    disabled_health_checks: str
    enabled_health_checks: str
    card_recovery: tuple[str, ...]
    card_quiet_time_s: float
    token_expiry_s: float
    verbosity: int


def _strategies(text: str) -> tuple[str, ...]:
    return tuple(flags.Choice(*STRATEGIES)(item.strip()) for item in text.split(",") if item.strip())


def _recoveries(text: str) -> tuple[str, ...]:
    words = [item.strip() for item in text.split(",") if item.strip()]
    if not words:
        raise ValueError(f"expected {' or '.join(RECOVERIES)}, or never")
    return () if words == ["never"] else tuple(flags.Choice(*RECOVERIES)(word) for word in words)


FLAGS: Final = (
    shared_flags.KUBECONFIG,
    shared_flags.NODE_NAME,
    Flag(
        "device-config-file",
        "device-config.yaml, shared with the scheduler",
        "",
        env="CONFIG_FILE",
        aliases=("config-file",),
        metavar="FILE",
    ),
    Flag("node-config-file", "config.json with per-node values; empty: none", "", metavar="FILE"),
    Flag("kubelet-dir", "kubelet's device-plugins folder", str(KUBELET_DIR), flags.folder, metavar="DIR"),
    shared_flags.HOOK_PATH,
    Flag(
        "container-hook-path", "the hook path as containers see it; empty: the same", "", flags.absolute, metavar="DIR"
    ),
    Flag("cdi-root", "folder of CDI specifications", "/var/run/cdi", flags.folder, metavar="DIR"),
    Flag(
        "lock-dir", "host folder of the lock that all containers share", folders.LOCK_DIR, flags.folder, metavar="DIR"
    ),
    shared_flags.NVML,
    Flag(
        "device-list-strategy",
        "how a container learns its cards, comma separated: " + ", ".join(STRATEGIES),
        ("envvar",),
        _strategies,
        env="DEVICE_LIST_STRATEGY",
        repeatable=True,
    ),
    Flag(
        "mig-strategy",
        "how MIG devices made by an administrator are offered: none, single (as cards) or mixed (by profile)",
        "none",
        flags.Choice("none", "single", "mixed"),
        env="MIG_STRATEGY",
    ),
    Flag("device-id-strategy", "uuid or index", "uuid", flags.Choice("uuid", "index"), env="DEVICE_ID_STRATEGY"),
    Flag(
        "pass-device-specs",
        "return device nodes from Allocate",
        False,
        flags.boolean,
        env="PASS_DEVICE_SPECS",
        switch=True,
    ),
    Flag("cdi-annotation-prefix", "prefix of CDI annotation keys", "cdi.k8s.io/", env="CDI_ANNOTATION_PREFIX"),
    shared_flags.DRIVER_ROOT,
    Flag(
        "driver-root-ctr-path",
        "the driver's folder as this process sees it; empty: the same",
        "",
        flags.absolute,
        env="DRIVER_ROOT_CTR_PATH",
        aliases=("container-driver-root",),
        metavar="DIR",
    ),
    Flag(
        "nvidia-cdi-hook-path",
        "NVIDIA's hook tool on the host, for CDI specifications; empty: none",
        "/usr/bin/nvidia-ctk",
        flags.absolute,
        env="NVIDIA_CDI_HOOK_PATH",
        aliases=("nvidia-ctk-path",),
        metavar="FILE",
    ),
    Flag(
        "heartbeat",
        "write the node's proof of life every 30 s, or only what changed",
        "always",
        flags.Choice("always", "on-change"),
    ),
    Flag(
        "register-format",
        "form of the register annotation, for older schedulers",
        "json",
        flags.Choice("json", "csv9", "csv7"),
    ),
    Flag(
        "topology-score", "publish pair scores of cards", False, flags.boolean, env="ENABLE_TOPOLOGY_SCORE", switch=True
    ),
    Flag("metrics-bind-address", "listener of /metrics and /healthz; empty: none", "", metavar="ADDRESS"),
    Flag(
        "dev-root",
        "host folder above dev/; empty: the driver's",
        "",
        flags.absolute,
        env="NVIDIA_DEV_ROOT",
        aliases=("nvidia-dev-root",),
        metavar="DIR",
    ),
    Flag(
        "gdrcopy-enabled",
        "containers get GPUDirect RDMA copies",
        False,
        flags.boolean,
        env="GDRCOPY_ENABLED",
        switch=True,
    ),
    Flag("gds-enabled", "containers get GPUDirect Storage", False, flags.boolean, env="GDS_ENABLED", switch=True),
    Flag(
        "mofed-enabled", "containers get Mellanox OFED devices", False, flags.boolean, env="MOFED_ENABLED", switch=True
    ),
    Flag(
        "allow-disable-control",
        "let containers set CUDA_DISABLE_CONTROL; keep equal to the scheduler's",
        False,
        flags.boolean,
        switch=True,
    ),
    Flag("disable-health-checks", "XIDs that do not count, or all", "", env="DP_DISABLE_HEALTHCHECKS", metavar="XIDS"),
    Flag(
        "enable-health-checks",
        "XIDs that count though ignored by default, or all",
        "",
        env="DP_ENABLE_HEALTHCHECKS",
        metavar="XIDS",
    ),
    Flag(
        "card-recovery",
        "what brings a card back after errors, comma separated: " + ", ".join(RECOVERIES) + "; or never",
        RECOVERIES,
        _recoveries,
    ),
    Flag("card-quiet-time", "how long without errors is quiet", 300.0, flags.duration_s, metavar="DURATION"),
    msgspec.structs.replace(
        shared_flags.NODE_LOCK_TIMEOUT,
        help="the scheduler's flag of this name; a token older than a fifth of it is looked at before a pod is served",
    ),
    Flag("cleanup", "take back what was written to the node, and end", False, flags.boolean, switch=True),
    shared_flags.VERBOSITY,
)

IGNORED: Final = (
    *shared_flags.KLOG,
    "fail-on-init-error",
    "device-discovery-strategy",
    "imex-channel-ids",
    "imex-required",
    "device-split-count",
    "device-memory-scaling",
    "device-cores-scaling",
    "disable-core-limit",
    "resource-name",
    "kubelet-socket",
)
"""Flags of upstream that have no effect here; each one given is named in a log line at start."""


def load(argv: Sequence[str], environment: Mapping[str, str]) -> tuple[DevicePluginSettings, list[str]]:
    """Settings and the ignored flags that were given. Raises ConfigError."""
    values, ignored = flags.parse(
        "hami device-plugin", "Kubelet device plugin of a GPU node.", FLAGS, argv, environment, ignored=IGNORED
    )
    for name, what in (("node_name", "name of this node"), ("device_config_file", "path of device-config.yaml")):
        if not values[name]:
            raise ConfigError(f"--{name.replace('_', '-')} is required: the {what}")
    ops = values["metrics_bind_address"]
    listed = values["device_list_strategy"]
    strategies = tuple(word for item in listed for word in (item if isinstance(item, tuple) else (item,)))
    settings = DevicePluginSettings(
        kubeconfig=values["kubeconfig"],
        node_name=values["node_name"],
        device_config_file=Path(values["device_config_file"]),
        node_config_file=Path(values["node_config_file"]) if values["node_config_file"] else None,
        kubelet_dir=Path(values["kubelet_dir"]),
        hook_path=Path(values["hook_path"]),
        container_hook_path=Path(values["container_hook_path"]) if values["container_hook_path"] else None,
        cdi_root=Path(values["cdi_root"]),
        lock_dir=Path(values["lock_dir"]),
        nvml=values["nvml"],
        device_list_strategies=strategies or ("envvar",),
        device_id_strategy=values["device_id_strategy"],
        mig_strategy=values["mig_strategy"],
        pass_device_specs=values["pass_device_specs"],
        cdi_annotation_prefix=values["cdi_annotation_prefix"],
        driver_root=values["nvidia_driver_root"] or "/",
        driver_root_here=values["driver_root_ctr_path"] or values["nvidia_driver_root"] or "/",
        cdi_hook_path=values["nvidia_cdi_hook_path"],
        heartbeat=values["heartbeat"],
        register_format=values["register_format"],
        topology_score=values["topology_score"],
        ops_listen=parse_address(ops, default_https=False, flag="metrics-bind-address") if ops else None,
        cleanup=values["cleanup"],
        dev_root=values["dev_root"] or values["nvidia_driver_root"] or "/",
        feature_envs=tuple(
            (variable, "enabled")
            for flag, variable in (("gdrcopy", ENV_GDRCOPY), ("gds", ENV_GDS), ("mofed", ENV_MOFED))
            if values[f"{flag}_enabled"]
        ),
        allow_disable_control=values["allow_disable_control"],
        disabled_health_checks=values["disable_health_checks"],
        enabled_health_checks=values["enable_health_checks"],
        card_recovery=values["card_recovery"],
        card_quiet_time_s=values["card_quiet_time"],
        token_expiry_s=values["node_lock_timeout"],
        verbosity=values["v"],
    )
    return settings, ignored
