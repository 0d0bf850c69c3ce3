"""`hami device-plugin`: one node's plugin, wired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import structlog

from hami import __version__
from hami.apps import runtime
from hami.config import device_config, flags, node_config
from hami.config import device_plugin as plugin_config
from hami.config.device_plugin import DevicePluginSettings
from hami.core.codec import RegisterForm
from hami.deviceplugin.plugin import Plugin
from hami.deviceplugin.settings import Heartbeat, PluginSettings
from hami.kube.client import ApiClient
from hami.kube.events import EventRecorder
from hami.nvml.probe import open_probe
from hami.obs import logs

log = structlog.get_logger("hami.device-plugin")

COMPONENT = "hami-device-plugin"
"""Source of the plugin's events, as upstream names it (spec/node 3.3)."""


def main(argv: Sequence[str]) -> int:
    """Runs until a signal. Raises HamiError when it cannot start."""
    settings, ignored = plugin_config.load(argv, flags.environment())
    logs.configure(settings.verbosity)
    for flag in ignored:
        log.warning("flag has no effect", flag=f"--{flag}")
    plugin_settings = effective(settings)
    for note in plugin_settings.notes:
        log.warning("configuration", note=note)
    return asyncio.run(runtime.run_until_signal(_run(settings, plugin_settings)))


def effective(settings: DevicePluginSettings) -> PluginSettings:
    """What this node's plugin does: the flags, device-config.yaml, and config.json over both. Raises ConfigError."""
    config = device_config.read(settings.device_config_file)
    node = node_config.read(settings.node_config_file, settings.node_name, config.nvidia)
    return PluginSettings(
        node_name=settings.node_name,
        nvidia=node.nvidia,
        kubelet_dir=settings.kubelet_dir,
        hook_path=settings.hook_path,
        lock_dir=settings.lock_dir,
        cdi_root=settings.cdi_root,
        mode=node.mode,
        hidden_uuids=node.hidden_uuids,
        hidden_indexes=node.hidden_indexes,
        preferred_allocation=node.preferred_allocation,
        register_form=RegisterForm(settings.register_format),
        heartbeat=Heartbeat(settings.heartbeat),
        pair_scores=settings.topology_score,
        device_list_strategies=settings.device_list_strategies,
        pass_device_specs=settings.pass_device_specs,
        notes=node.notes,
        version=__version__,
    )


async def _run(settings: DevicePluginSettings, plugin_settings: PluginSettings) -> None:
    client = await ApiClient.load(settings.kubeconfig or None)
    recorder = EventRecorder(client, COMPONENT, host=settings.node_name)
    probe = open_probe(settings.nvml, node_name=settings.node_name, driver_root=Path(settings.driver_root))
    try:
        await runtime.run_together([recorder.run(), Plugin(plugin_settings, client, probe, recorder).run()])
    finally:
        await recorder.drain()
        await client.close()
