"""Joins what the host has with what the vendor computes: one container's edits, its folder made (spec/node 2.10)."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Final

from hami.core.codec import parse_bool
from hami.core.container_edits import ContainerEdits, DeviceNode
from hami.core.errors import AllocateError
from hami.core.objects import Container
from hami.core.whose_call import Call
from hami.deviceplugin.board import BoardState
from hami.deviceplugin.cdi_files import CdiFiles
from hami.deviceplugin.host_devices import card_node, control_nodes
from hami.deviceplugin.host_files import container_dir, limits_file, prepare_container_dir, write_atomically
from hami.deviceplugin.mig_setup import mig_devices
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.shim_wait import library_file, shim_problem, wait_for_shim
from hami.vendors.nvidia.cdi import CdiClass
from hami.vendors.nvidia.edits import DeviceListStrategy, EditContext, container_edits, limits_text
from hami.vendors.nvidia.folders import REGION_SUFFIX
from hami.vendors.nvidia.names import ENV_DISABLE_CONTROL

_READ_MODE: Final = 0o644


class ContainerSetup:
    """Makes one container ready on this host."""

    def __init__(self, settings: PluginSettings) -> None:
        self._settings = settings
        self.cdi = CdiFiles(settings)

    async def ready(self, until_s: float) -> None:
        """Waits for what the host lacks, at most until `until_s`; `prepare` says what is still missing then."""
        await wait_for_shim(self._settings, until_s)

    async def prepare(self, call: Call, state: BoardState) -> ContainerEdits:
        """Makes the container's folder and returns its edits. Raises AllocateError, OSError and ValueError."""
        settings = self._settings
        if not call.container_name:
            raise AllocateError(f"segment {call.container_index} of the allocation belongs to no container of the pod")
        folder = container_dir(settings.vgpu_dir, call.pod.metadata.uid, call.container_name)
        return await asyncio.to_thread(self._prepare, call, state, folder)

    def _prepare(self, call: Call, state: BoardState, folder: Path) -> ContainerEdits:
        settings = self._settings
        problem = shim_problem(settings)
        if problem:
            raise AllocateError(problem)
        cdi_features = self.cdi.ensure(state.everything, mig_devices(settings, state.everything))
        cache_name = str(uuid.uuid4())
        context = self._context(call, state, folder, cache_name, cdi_features)
        prepare_container_dir(folder, settings.lock_dir, Path(context.region_file).name)
        limits = limits_text(call.shares, context, settings.nvidia)
        write_atomically(Path(context.limits_file), limits.encode(), _READ_MODE)
        return container_edits(call.shares, context, settings.nvidia)

    def _context(
        self, call: Call, state: BoardState, folder: Path, cache_name: str, cdi_features: tuple[CdiClass, ...]
    ) -> EditContext:
        settings = self._settings
        container = call.pod.containers[call.container_index]
        return EditContext(
            hook_path=str(settings.hook_path),
            container_hook_path=str(settings.container_hook_path or settings.hook_path),
            limits_file=str(limits_file(settings.vgpu_dir, folder.name)),
            lock_dir=str(settings.lock_dir),
            container_dir=str(folder),
            cache_name=cache_name,
            region_file=str(folder / f"{cache_name}{REGION_SUFFIX}"),
            plugin_version=settings.version,
            has_versioned_library=library_file(settings).name != "libvgpu.so",
            has_license=(settings.vgpu_dir / "license").is_file(),
            disable_control=settings.allow_disable_control and opts_out(container),
            memory_scaling=settings.nvidia.device_memory_scaling,
            log_level=settings.nvidia.lib_cuda_log_level,
            mode=settings.mode,
            device_list_strategies=tuple(DeviceListStrategy(each) for each in settings.device_list_strategies),
            visible_ids=self._visible_ids(call, state),
            feature_envs=settings.feature_envs,
            cdi_features=cdi_features,
            cdi_annotation_prefix=settings.cdi_annotation_prefix,
            pass_device_specs=settings.pass_device_specs,
            device_nodes=self._device_nodes(call, state) if settings.pass_device_specs else (),
        )

    def _visible_ids(self, call: Call, state: BoardState) -> tuple[str, ...]:
        """Indexes where those are wanted, in the order of the shares (trap T-18); empty means the shares' own ids."""
        if self._settings.device_id_strategy != "index":
            return ()
        cards = (state.card(share.device_id) for share in call.shares)
        return tuple(str(card.index) for card in cards if card is not None)

    def _device_nodes(self, call: Call, state: BoardState) -> tuple[DeviceNode, ...]:
        """Control nodes that exist here, then the node of each card (spec/node 2.9)."""
        root = self._settings.dev_root
        cards = (state.card(share.device_id) for share in call.shares)
        nodes = [*control_nodes(root), *(card_node(root, card) for card in cards if card is not None)]
        return tuple(dict.fromkeys(nodes))


def opts_out(container: Container) -> bool:
    """Whether the container's own CUDA_DISABLE_CONTROL, as a literal value, says so (spec/node 2.10, vector 9)."""
    return any(each.name == ENV_DISABLE_CONTROL and parse_bool(each.value) is True for each in container.env or ())
