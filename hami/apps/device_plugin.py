"""`hami device-plugin`: one node's plugin, wired."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import structlog

from hami import __version__
from hami.apps import runtime
from hami.config import device_config, flags, node_config
from hami.config import device_plugin as plugin_config
from hami.config.device_plugin import DevicePluginSettings
from hami.config.node_config import NodeConfig
from hami.core.codec import RegisterForm
from hami.core.errors import ConfigError, DriverReplacedError
from hami.core.keys import EVENT_INVALID_CONFIGURATION
from hami.deviceplugin import event_reasons
from hami.deviceplugin.allocate import AllocateStats
from hami.deviceplugin.cleanup import clean_up
from hami.deviceplugin.crash_policy import CrashPolicy
from hami.deviceplugin.health import ignored_xids
from hami.deviceplugin.plugin import Plugin
from hami.deviceplugin.settings import HealthSettings, Heartbeat, MigStrategy, PluginSettings, Recovery
from hami.kube.client import ApiClient
from hami.kube.events import EventRecorder
from hami.kube.writer import KubeWriter
from hami.nvml.probe import DeviceProbe, open_probe
from hami.obs import logs
from hami.vendors.nvidia.names import MODE_MIG, MODE_MPS
from hami.web.plugin_ops import plugin_app
from hami.web.server import Listener, serving

log = structlog.get_logger("hami.device-plugin")

_CRASH_PAUSE_S: Final = 1.0


def main(argv: Sequence[str]) -> int:
    """Runs until a signal. Raises HamiError when it cannot start."""
    settings, ignored = plugin_config.load(argv, flags.environment())
    logs.configure(settings.verbosity)
    for flag in ignored:
        log.warning("flag has no effect", flag=f"--{flag}")
    plugin_settings = effective(settings)
    for note in plugin_settings.notes:
        log.warning("configuration", note=note)
    return asyncio.run(runtime.run_until_signal(Process(settings, plugin_settings).run()))


def effective(settings: DevicePluginSettings) -> PluginSettings:
    """What this node's plugin does: the flags, device-config.yaml, and config.json over both. Raises ConfigError."""
    config = device_config.read(settings.device_config_file)
    node = node_config.read(settings.node_config_file, settings.node_name, config.nvidia)
    return PluginSettings(
        node_name=settings.node_name,
        nvidia=node.nvidia,
        kubelet_dir=settings.kubelet_dir,
        hook_path=settings.hook_path,
        container_hook_path=settings.container_hook_path,
        lock_dir=settings.lock_dir,
        require_shim=settings.nvml == "real",
        cdi_root=settings.cdi_root,
        cdi_hook_path=settings.cdi_hook_path,
        driver_root=Path(settings.driver_root),
        driver_root_here=Path(settings.driver_root_here),
        mode=node.mode,
        mig_strategy=MigStrategy(node.mig_strategy or settings.mig_strategy),
        hidden_uuids=node.hidden_uuids,
        hidden_indexes=node.hidden_indexes,
        preferred_allocation=node.preferred_allocation,
        register_form=RegisterForm(settings.register_format),
        heartbeat=Heartbeat(settings.heartbeat),
        pair_scores=settings.topology_score,
        device_list_strategies=settings.device_list_strategies,
        pass_device_specs=settings.pass_device_specs,
        device_id_strategy=settings.device_id_strategy,
        cdi_annotation_prefix=settings.cdi_annotation_prefix,
        feature_envs=settings.feature_envs,
        dev_root=Path(settings.dev_root),
        allow_disable_control=settings.allow_disable_control,
        token_expiry_s=settings.token_expiry_s,
        health=_health(settings),
        notes=(*node.notes, *_mode_notes(node, settings)),
        version=__version__,
    )


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _mode_notes(node: NodeConfig, settings: DevicePluginSettings) -> list[str]:
    """What a reader of flags and config.json might expect and does not get."""
    own, flag = node.mig_strategy, settings.mig_strategy
    strategy = own or flag
    notes = []
    if node.mode == MODE_MPS:
        notes.append("operatingmode mps shares cards as hami-core does: no MPS server is started, and pods need none")
    if node.mode != MODE_MIG:
        different = f"migstrategy {own} of config.json holds on this node, not --mig-strategy {flag}"
        return [*notes, different] if own and own != flag else notes
    if strategy != MigStrategy.NONE:
        what = "instances are made as pods need them"
        notes.append(f"migstrategy {strategy} has no effect in operatingmode mig: {what}")
    if settings.register_format != RegisterForm.JSON:
        notes.append(
            f"--register-format {settings.register_format} cannot say which MIG profiles cards have: no pod is placed"
            " on a node in operatingmode mig"
        )
    return notes


def _health(settings: DevicePluginSettings) -> HealthSettings:
    return msgspec.structs.replace(
        ignored_xids(settings.disabled_health_checks, settings.enabled_health_checks),
        recovery=frozenset(map(Recovery, settings.card_recovery)),
        xid_quiet_s=settings.card_quiet_time_s,
    )


class Process:
    """One device plugin process: the plugin, made anew whenever its configuration changes."""

    def __init__(self, settings: DevicePluginSettings, plugin_settings: PluginSettings) -> None:
        self._settings = settings
        self._effective = plugin_settings
        self._plugin: Plugin | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Serves until cancelled."""
        settings = self._settings
        client = await ApiClient.load(settings.kubeconfig or None)
        recorder = EventRecorder(client, event_reasons.COMPONENT, host=settings.node_name)
        probe = open_probe(
            settings.nvml,
            node_name=settings.node_name,
            driver_root=Path(settings.driver_root_here),
            state_dir=self._effective.state_dir,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._start_anew, recorder)
        try:
            if settings.cleanup:
                await clean_up(self._effective, KubeWriter(client), probe, recorder)
                return
            async with serving(self._listeners()):
                jobs = [recorder.run(), self._follow_files(recorder), self._serve(client, probe, recorder)]
                await runtime.run_together(jobs)
        finally:
            await recorder.drain()
            await client.close()
            await probe.close()

    async def _serve(self, client: ApiClient, probe: DeviceProbe, recorder: EventRecorder) -> None:
        """Runs plugins one after another, each with the configuration of its time."""
        policy = CrashPolicy()
        while True:
            self._changed.clear()
            self._plugin = Plugin(self._effective, client, probe, recorder)
            try:
                await self._serve_until_changed(self._plugin)
            except* (ConfigError, DriverReplacedError):
                # What a new start in place cannot change; kubelet starts the container anew.
                raise
            except* Exception as crash:
                if not policy.may_go_on(time.monotonic()):
                    raise
                self._say_crash(recorder, crash)
                await asyncio.sleep(_CRASH_PAUSE_S)

    async def _serve_until_changed(self, plugin: Plugin) -> None:
        running = asyncio.ensure_future(plugin.run())
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({running, changed}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            changed.cancel()
            running.cancel()
            await asyncio.wait({running})

    def _say_crash(self, recorder: EventRecorder, crash: BaseException) -> None:
        log.error("the plugin is started anew after a fault of its own", exc_info=crash)
        recorder.node_event(
            self._settings.node_name,
            warning=True,
            reason=event_reasons.PLUGIN_CRASHED,
            message=f"the device plugin is started anew after a fault of its own: {_innermost(crash)!r}",
        )

    async def _follow_files(self, recorder: EventRecorder) -> None:
        files = [file for file in (self._settings.device_config_file, self._settings.node_config_file) if file]
        folders = sorted({file.absolute().parent for file in files if file.absolute().parent.is_dir()})
        async for _ in runtime.folder_changes(*folders):
            self._reload(recorder)

    def _reload(self, recorder: EventRecorder) -> None:
        """Takes the new configuration if it is right; otherwise the last good one stays in force, and it is said."""
        try:
            fresh = effective(self._settings)
        except ConfigError as error:
            log.warning("configuration not reloaded, the last good one stays in force", error=str(error))
            recorder.node_event(
                self._settings.node_name, warning=True, reason=EVENT_INVALID_CONFIGURATION, message=str(error)
            )
            return
        if fresh != self._effective:
            log.info("configuration reloaded")
            self._effective = fresh
            self._changed.set()

    def _start_anew(self, recorder: EventRecorder) -> None:
        """SIGHUP: everything from the start, also where the files say the same."""
        self._reload(recorder)
        self._changed.set()

    def _listeners(self) -> list[Listener]:
        if self._settings.ops_listen is None:
            return []
        return [Listener(self._settings.ops_listen, plugin_app(self._missing, self._counters), None)]

    def _missing(self) -> str:
        if self._plugin is None or not self._plugin.registered.is_set():
            problem = self._plugin.board.state.strategy_problem if self._plugin else ""
            return problem or "not registered with kubelet"
        return ""

    def _counters(self) -> dict[str, float]:
        if self._plugin is None:
            return {}
        state = self._plugin.board.state
        return {
            **{f"allocate_{name}": getattr(self._plugin.stats, name) for name in AllocateStats.__dataclass_fields__},
            "cards_taken_out": float(self._plugin.health_stats.taken_out),
            "cards_taken_back": float(self._plugin.health_stats.taken_back),
            "allocatable_differs": float(self._plugin.offer_check.foreign),
            "registered": float(self._plugin.registered.is_set()),
            "cards": float(len(state.cards)),
            "cards_unhealthy": float(sum(1 for card in state.cards if not state.healthy(card.uuid))),
        }
