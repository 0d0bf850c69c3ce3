"""What a container with NVIDIA shares gets: device list, limits, mounts (spec/node 2.9, 2.10).

Pure: everything that depends on the host or on chance comes in through `EditContext`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec

from hami.core.container_edits import ContainerEdits, DeviceNode, Mount
from hami.core.model import ContainerShares
from hami.vendors.nvidia import names
from hami.vendors.nvidia.cdi import ALL, CdiClass, qualified
from hami.vendors.nvidia.config import NvidiaConfig
from hami.vendors.nvidia.folders import LOCK_DIR, REGION_SUFFIX, VGPU

CONTAINER_LICENSE: Final = "/tmp/license"  # noqa: S108 - fixed by the in-container library
CONTAINER_VALIDATOR: Final = "/usr/bin/vgpuvalidator"
PRELOAD_FILE: Final = "/etc/ld.so.preload"
CONTAINER_LIMITS: Final = "/usr/local/vgpu/vgpu.conf"
"""Where our in-container library reads limits that the container's own variables cannot lift."""
_VOLUME_LIST_DIR: Final = "/var/run/nvidia-container-devices"
_NO_CORE_LIMIT: Final = "disable"


class DeviceListStrategy(enum.StrEnum):
    """How the container runtime learns which cards to show."""

    ENVVAR = "envvar"
    VOLUME_MOUNTS = "volume-mounts"
    CDI_ANNOTATIONS = "cdi-annotations"
    CDI_CRI = "cdi-cri"


_CDI: Final = (DeviceListStrategy.CDI_ANNOTATIONS, DeviceListStrategy.CDI_CRI)


class EditContext(msgspec.Struct, frozen=True):
    """Facts about the host and the container at hand.

    `hook_path` is the host prefix of the vgpu directory, `container_hook_path` the one inside containers (empty: the
    same); `container_dir` is the host directory of this container's region file; `cache_name` names the region file
    without suffix; `limits_file` is the host file with the text of `limits_text` (empty: none); `region_file` is the
    host file of the region where that exists already (empty: the container makes it).
    """

    hook_path: str
    lock_dir: str
    container_dir: str
    cache_name: str
    container_hook_path: str = ""
    limits_file: str = ""
    region_file: str = ""
    plugin_version: str = ""
    has_versioned_library: bool = False
    has_license: bool = False
    disable_control: bool = False
    """The container opted out with CUDA_DISABLE_CONTROL, and the operator allows it."""
    memory_scaling: float = 1.0
    log_level: str = ""
    mode: str = names.MODE_CORE
    device_list_strategies: tuple[DeviceListStrategy, ...] = (DeviceListStrategy.ENVVAR,)
    visible_ids: tuple[str, ...] = ()
    """Ids to show instead of the shares' ids: MIG devices, or cards that kubelet chose."""
    pass_device_specs: bool = False
    device_nodes: tuple[DeviceNode, ...] = ()
    """Control nodes and card nodes that exist on the host, for `pass_device_specs`."""
    feature_envs: tuple[tuple[str, str], ...] = ()
    """Variables of gdrcopy, gds, mofed and IMEX channels."""
    cdi_annotation_prefix: str = "cdi.k8s.io/"
    cdi_features: tuple[CdiClass, ...] = ()
    """Further kinds that every container gets, all of each: those turned on and found on the host."""

    @property
    def container_vgpu(self) -> str:
        return f"{self.container_hook_path or self.hook_path}/{VGPU}"


def container_edits(shares: ContainerShares, context: EditContext, config: NvidiaConfig) -> ContainerEdits:
    """Edits for one container. In MIG mode the device list only: the hardware keeps the limits."""
    base = _device_list(shares, context)
    if context.mode == names.MODE_MIG:
        return base
    return msgspec.structs.replace(
        base,
        envs=(*base.envs, *_limit_envs(shares, context, config)),
        mounts=(*base.mounts, *_library_mounts(context)),
    )


def limits_text(shares: ContainerShares, context: EditContext, config: NvidiaConfig) -> str:
    """The limits as a file, mounted read-only: with it the container's variables can lower a limit, never lift it.

    kubelet lets a container's own variables win over the plugin's, and a program can clear its environment (issue 9).
    Cards that are no share, should the container see any, have the smallest share's limit.
    """
    smallest = min((share.memory_mib for share in shares), default=0)
    lines = [
        (names.ENV_VISIBLE_DEVICES, ",".join(dict.fromkeys(share.device_id for share in shares))),
        (names.ENV_MEMORY_LIMIT, f"{smallest}m"),
        *_limit_envs(shares, context, config),
    ]
    return "".join(f"{name}={value}\n" for name, value in lines)


def _device_list(shares: ContainerShares, context: EditContext) -> ContainerEdits:
    ids = tuple(dict.fromkeys(context.visible_ids or (share.device_id for share in shares)))
    strategies = context.device_list_strategies
    features = tuple(qualified(each, ALL) for each in context.cdi_features)
    cdi_names = (*(qualified(CdiClass.GPU, each) for each in ids), *features)
    with_annotation = DeviceListStrategy.CDI_ANNOTATIONS in strategies
    annotation = f"{context.cdi_annotation_prefix}nvidia-device-plugin_{context.cache_name}"
    cdi = ContainerEdits(
        annotations=((annotation, ",".join(cdi_names)),) if with_annotation else (),
        cdi_devices=cdi_names if DeviceListStrategy.CDI_CRI in strategies else (),
    )
    if all(strategy in _CDI for strategy in strategies):
        return cdi
    envs: list[tuple[str, str]] = []
    mounts: tuple[Mount, ...] = ()
    if DeviceListStrategy.VOLUME_MOUNTS in strategies:
        envs.append((names.ENV_VISIBLE_DEVICES, _VOLUME_LIST_DIR))
        mounts = tuple(Mount(f"{_VOLUME_LIST_DIR}/{each}", "/dev/null", read_only=False) for each in ids)
    else:
        envs.append((names.ENV_VISIBLE_DEVICES, ",".join(ids)))
    return msgspec.structs.replace(
        cdi,
        envs=(*envs, *context.feature_envs),
        mounts=mounts,
        devices=context.device_nodes if context.pass_device_specs else (),
    )


def _limit_envs(shares: ContainerShares, context: EditContext, config: NvidiaConfig) -> Iterable[tuple[str, str]]:
    for position, share in enumerate(shares):
        yield f"{names.ENV_MEMORY_LIMIT}_{position}", f"{share.memory_mib}m"
    yield names.ENV_SM_LIMIT, str(shares[0].core_percent if shares else 0)
    yield names.ENV_SHARED_CACHE, f"{context.container_vgpu}/{context.cache_name}{REGION_SUFFIX}"
    if context.memory_scaling > 1:
        yield names.ENV_OVERSUBSCRIBE, "true"
    if context.log_level:
        yield names.ENV_LOG_LEVEL, context.log_level
    if config.disable_core_limit:
        yield names.ENV_CORE_POLICY, _NO_CORE_LIMIT


def _library_mounts(context: EditContext) -> Iterable[Mount]:
    vgpu, inside = f"{context.hook_path}/{VGPU}", context.container_vgpu
    versioned = f".{context.plugin_version}" if context.has_versioned_library else ""
    yield Mount(f"{inside}/libvgpu.so", f"{vgpu}/libvgpu.so{versioned}", read_only=True)
    yield Mount(inside, context.container_dir, read_only=False)
    yield Mount(LOCK_DIR, context.lock_dir, read_only=False)
    if not context.disable_control:
        yield Mount(PRELOAD_FILE, f"{vgpu}/ld.so.preload", read_only=True)
    if context.region_file:
        # A mount point cannot be removed: whoever removed the region would get a second share with a new one.
        yield Mount(f"{inside}/{context.cache_name}{REGION_SUFFIX}", context.region_file, read_only=False)
    if context.limits_file:
        yield Mount(CONTAINER_LIMITS, context.limits_file, read_only=True)
    if context.has_license:
        yield Mount(CONTAINER_LICENSE, f"{vgpu}/license", read_only=True)
        yield Mount(CONTAINER_VALIDATOR, f"{vgpu}/vgpuvalidator", read_only=True)
