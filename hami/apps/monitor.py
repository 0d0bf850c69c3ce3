"""`hami monitor`: one node's monitor, wired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog

from hami.apps import runtime
from hami.config import flags
from hami.config import monitor as monitor_config
from hami.config.monitor import MonitorProcessSettings
from hami.core.objects import Pod, pod_decoder
from hami.kube import paths
from hami.kube.client import ApiClient
from hami.kube.ratelimit import Lane
from hami.kube.reflector import EventType, Reflector
from hami.kube.writer import KubeWriter
from hami.monitor.monitor import Monitor
from hami.monitor.pods import PodBook
from hami.monitor.settings import MonitorSettings
from hami.nvml.probe import open_probe
from hami.obs import logs
from hami.web.monitor_app import monitor_app
from hami.web.server import Listener, serving

log = structlog.get_logger("hami.monitor")


def main(argv: Sequence[str]) -> int:
    """Runs until a signal. Raises HamiError when it cannot start."""
    settings, ignored = monitor_config.load(argv, flags.environment())
    logs.configure(settings.verbosity)
    for flag in ignored:
        log.warning("flag has no effect", flag=f"--{flag}")
    return asyncio.run(runtime.run_until_signal(run(settings)))


async def run(settings: MonitorProcessSettings) -> None:
    """Serves until cancelled. Containers are looked at when the node's pods are known, metrics at once."""
    probe = open_probe(settings.nvml, node_name=settings.node_name, driver_root=Path(settings.driver_root))
    client = await ApiClient.load(settings.kubeconfig or None)
    pods = PodBook()
    reflector = _reflector(client, settings.node_name, pods)
    list_pods = partial(KubeWriter(client, Lane.DEFAULT).list_pods_on_node, settings.node_name)
    monitor = Monitor(_of_node(settings), probe, pods, list_pods)

    def missing() -> str:
        return "" if monitor.looked.is_set() else "the pods of this node are not known yet"

    async def look() -> None:
        await reflector.ready.wait()
        await monitor.run()

    try:
        listener = Listener(settings.metrics_listen, monitor_app(monitor.scrape, monitor.stuck, missing), None)
        log.info("serving", url=listener.url)
        async with serving([listener]):
            await runtime.run_together([reflector.run(), look()])
    finally:
        await client.close()
        await probe.close()


def _of_node(settings: MonitorProcessSettings) -> MonitorSettings:
    return MonitorSettings(
        node_name=settings.node_name,
        vgpu_dir=settings.vgpu_dir,
        look_interval_s=settings.look_interval_s,
        grace_s=settings.resync_interval_s,
        legacy_metrics=settings.legacy_metrics,
    )


def _reflector(client: ApiClient, node_name: str, pods: PodBook) -> Reflector[Pod]:
    def on_pod(kind: EventType, pod: Pod) -> None:
        pods.changed(pod, deleted=kind is EventType.DELETED)

    selector = f"spec.nodeName={node_name}"
    return Reflector(client, paths.PODS, pod_decoder, pods.replaced, on_pod, field_selector=selector)
