"""What one device plugin process is told: everything frozen, read by `hami.config` and the composition root.

Defaults are the chart's (spec/node 1.2-1.4, 2.10).
"""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

from hami import __version__
from hami.core.codec import RegisterForm
from hami.vendors.nvidia import folders
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.names import MODE_CORE

KUBELET_DIR = Path("/var/lib/kubelet/device-plugins")


class Heartbeat(enum.StrEnum):
    """When the node's annotations are written (design 3, "Registration")."""

    ALWAYS = "always"
    """Every period, as proof of life."""
    ON_CHANGE = "on-change"
    """Only differences: for very large clusters."""


class Recovery(enum.StrEnum):
    """What brings a card back after errors, once it answers and is not damaged."""

    QUIET = "quiet"
    """No error for a while."""
    RESET = "reset"
    """It was lost and answers again."""
    OPERATOR = "operator"
    """The annotation hami.io/card-recovered on the node."""


class MigStrategy(enum.StrEnum):
    """How MIG devices that are there are offered to kubelet, as NVIDIA's plugin has it (spec/node 2.2)."""

    NONE = "none"
    """Not at all."""
    SINGLE = "single"
    """As cards, all of one kind."""
    MIXED = "mixed"
    """Each profile as a resource of its own, beside the cards without MIG."""


class HealthSettings(msgspec.Struct, frozen=True):
    """Which driver errors take a card out of service, and when it comes back (spec/node 4; reports B88, B89)."""

    enabled: bool = True
    ignored_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68, 109})
    recovery: frozenset[Recovery] = frozenset(Recovery)
    xid_quiet_s: float = 300.0
    """How long without errors is quiet; 0 is never."""
    poll_s: float = 5.0
    """How long one wait for error events lasts."""


class PluginSettings(msgspec.Struct, frozen=True):
    """One node's plugin. Scaling, split count, NUMA and log level are those of `nvidia`, per-node values included."""

    node_name: str
    nvidia: NvidiaConfig = NvidiaConfig()
    kubelet_dir: Path = KUBELET_DIR
    hook_path: Path = Path(folders.HOOK_PATH)
    """Host prefix: the shim and the containers' folders live in its folder `vgpu`."""
    container_hook_path: Path | None = None
    """The same prefix inside containers, where it differs (a host whose /usr/local cannot be written)."""
    lock_dir: Path = Path(folders.LOCK_DIR)
    require_shim: bool = True
    """Allocate waits for the in-container library on the host; off for simulated cards, which nobody can use up."""
    cdi_root: Path = Path("/var/run/cdi")
    cdi_interval_s: float = 10.0
    """How often CDI specifications on the disk are compared with what was written."""
    cdi_hook_path: str = ""
    """NVIDIA's hook tool on the host, written into CDI specifications; empty: none."""
    driver_root: Path = Path("/")
    """Host folder of the driver, and the same folder as this process sees it."""
    driver_root_here: Path = Path("/")
    mode: str = MODE_CORE
    mig_strategy: MigStrategy = MigStrategy.NONE
    """What instances that an administrator made are offered as; without effect in mode mig."""
    mig_interval_s: float = 10.0
    """How often MIG instances are compared with what pods hold."""
    mig_minors: Path = Path("/proc/driver/nvidia-caps/mig-minors")
    """Where the driver lists the numbers of the nodes that open MIG instances."""
    hidden_uuids: tuple[str, ...] = ()
    hidden_indexes: tuple[int, ...] = ()
    preferred_allocation: bool = True
    register_form: RegisterForm = RegisterForm.JSON
    heartbeat: Heartbeat = Heartbeat.ALWAYS
    report_interval_s: float = 30.0
    pair_scores: bool = False
    """Publish link quality (environment ENABLE_TOPOLOGY_SCORE upstream)."""
    device_list_strategies: tuple[str, ...] = ("envvar",)
    device_id_strategy: str = "uuid"
    """`uuid` or `index`: how the container's device list names cards."""
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    feature_envs: tuple[tuple[str, str], ...] = ()
    """Variables for every container with devices: NVIDIA_GDRCOPY=enabled and the like."""
    pass_device_specs: bool = False
    dev_root: Path = Path("/")
    """Where the host's `dev` folder lies, for device specs."""
    allow_disable_control: bool = False
    """Containers may opt out of the limits by CUDA_DISABLE_CONTROL (design 5: off unless the operator allows it)."""
    allocate_timeout_s: float = 5.0
    token_expiry_s: float = 300.0
    """How long schedulers leave the node's token to a pod that is not served (`--node-lock-timeout` there)."""
    watch_interval_s: float = 0.5
    """How often kubelet's socket and ours are looked at."""
    cleanup_interval_s: float = 300.0
    """How often folders of containers that are gone are looked for; they go at the second look."""
    health: HealthSettings = HealthSettings()
    notes: tuple[str, ...] = ()
    """Said once as warning events on the node (config.json has no entry for it, with the nearest name)."""
    version: str = __version__

    @property
    def kubelet_socket(self) -> Path:
        return self.kubelet_dir / "kubelet.sock"

    @property
    def plugin_socket(self) -> Path:
        """The socket of the shared cards' resource."""
        return socket_of(self.kubelet_dir, self.nvidia.resource_count_name)

    @property
    def state_dir(self) -> Path:
        """What outlives this process: kubelet removes files beside its sockets when it starts, never folders."""
        return self.kubelet_dir / "hami"

    @property
    def vgpu_dir(self) -> Path:
        return self.hook_path / folders.VGPU


def socket_of(kubelet_dir: Path, resource: str) -> Path:
    """`nvidia-<name>.sock`, the name being the resource's part after the slash (spec/node 2.1)."""
    return kubelet_dir / f"nvidia-{resource.rpartition('/')[2]}.sock"
