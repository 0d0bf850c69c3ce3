"""`--cleanup`: takes back what the plugin wrote to its node, for a node that leaves or another plugin that comes.

Folders of pods that are still on the node stay: their containers have them mounted.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
from pathlib import Path

import structlog

from hami.core.keys import BIND_EPOCH, NODE_LOCK, ROOM_FREED
from hami.deviceplugin.cdi_files import remove_cdi_files
from hami.deviceplugin.host_files import orphaned_dirs, remove_dirs
from hami.deviceplugin.mig_manager import give_cards_back
from hami.deviceplugin.settings import PluginSettings
from hami.deviceplugin.single import NodeLock
from hami.kube.writer import KubeWriter
from hami.nvml.probe import DeviceProbe
from hami.placement.ports import EventSink
from hami.vendors.nvidia.names import HANDSHAKE_KEY, REGISTER_KEY, SCORE_KEY

log = structlog.get_logger(__name__)


async def clean_up(settings: PluginSettings, writer: KubeWriter, probe: DeviceProbe, events: EventSink) -> None:
    """Removes annotations, CDI specifications, stale sockets and folders that no pod has any more; switches MIG off.

    Raises AnotherPluginError while a plugin serves this node (it would write everything again), ApiError,
    TransportError and OSError.
    """
    lock = NodeLock(settings.kubelet_dir, settings.plugin_socket.stem)
    lock.acquire()
    try:
        # The scheduler's: a node that offers nothing takes no Binding.
        keys = (HANDSHAKE_KEY, REGISTER_KEY, SCORE_KEY, NODE_LOCK, BIND_EPOCH, ROOM_FREED)
        await writer.patch_node_annotations(settings.node_name, dict.fromkeys(keys))
        alive = await writer.pod_uids_on_node(settings.node_name)
        await asyncio.to_thread(_clean_host, settings, alive)
        mig_cards = await give_cards_back(settings, probe, writer, events)
    finally:
        lock.release()
    if not mig_cards:
        # Otherwise it tells the next clean-up, or plugin, which cards are still to be given back.
        await asyncio.to_thread(shutil.rmtree, lock.folder, ignore_errors=True)
    log.info("cleaned up", node=settings.node_name, annotations=keys, mig_cards_in_use=sorted(mig_cards))


def _clean_host(settings: PluginSettings, alive: frozenset[str]) -> None:
    removed = remove_cdi_files(settings.cdi_root)
    for path in (settings.plugin_socket, *settings.kubelet_dir.glob("nvidia-mig-*.sock")):
        if path.is_socket() and not _served(path):
            path.unlink()
            removed.append(path)
    folders = orphaned_dirs(settings.vgpu_dir, alive)
    remove_dirs(settings.vgpu_dir, folders)
    kept = len(orphaned_dirs(settings.vgpu_dir, frozenset()))
    log.info("host cleaned up", files=[str(path) for path in removed], folders=sorted(folders), folders_in_use=kept)


def _served(path: Path) -> bool:
    """Whether somebody listens: another plugin that uses the same name."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except OSError:
            return False
    return True
