"""The node's parts killed and started again under tenants, one after another; the table of what was seen is printed.

A pod whose kubelet lost its device plugin in the middle is failed by kubelet for good (UnexpectedAdmissionError): its
controller makes another. Nobody else may notice.
"""

from __future__ import annotations

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hami.deviceplugin.settings import PluginSettings
from tests.cluster.pods import Workspace
from tests.cluster.processes import wait_until
from tests.node import kubelet, table
from tests.node.gpu import GpuNode
from tests.node.tenants import Tenant
from tests.tools.proxy import FaultProxy
from tests.tools.proxy_faults import Fault, When

REPLICAS = 3
ALLOCATE_DEADLINE_S = PluginSettings("").allocate_timeout_s


@dataclasses.dataclass(frozen=True, slots=True)
class Outage:
    """Something that breaks and is put right; `spares` says that running containers must not notice."""

    name: str
    strike: Callable[[GpuNode], None]
    spares: bool = True


def restart_kubelet(gpus: GpuNode) -> None:
    """SIGKILL and start; our plugin has to offer its cards again."""
    gpus.node.kubelet.process.kill()
    gpus.node.kubelet.start()
    gpus.wait_cards()


def restart_containerd(gpus: GpuNode) -> None:
    """SIGKILL and start; its shims hold the containers meanwhile."""
    gpus.node.containerd.process.kill()
    gpus.node.containerd.start()


def restart_plugin(gpus: GpuNode) -> None:
    """SIGKILL and start."""
    gpus.plugin.kill()
    gpus.start_plugin()


def restart_scheduler(gpus: GpuNode) -> None:
    """SIGKILL our scheduler and start it."""
    gpus.cluster.scheduler.process.restart()
    gpus.cluster.scheduler.wait_ready()


def restart_api_server(gpus: GpuNode) -> None:
    """SIGKILL kube-apiserver and etcd and start them."""
    for process in (gpus.node.plane.apiserver, gpus.node.plane.etcd):
        process.kill()
    for process in (gpus.node.plane.etcd, gpus.node.plane.apiserver):
        process.start()
    gpus.node.plane.wait_api()
    gpus.node.plane.api.get(gpus.node.kubelet.path)  # the kept connection is dead: a read makes a new one


def recreate_socket_folder(gpus: GpuNode) -> None:
    """Everything under device-plugins goes, kubelet's checkpoint too; kubelet makes its socket anew when it starts."""
    gpus.node.kubelet.process.kill()
    gpus.node.kubelet.recreate_device_plugins_folder()
    gpus.node.kubelet.start()
    gpus.wait_cards()


def remove_plugin_socket(gpus: GpuNode) -> None:
    """Somebody tidies up: our socket goes, kubelet's stays. Ours has to come back."""
    kubelet.PLUGIN_SOCKET.unlink()
    wait_until(kubelet.PLUGIN_SOCKET.exists, 30, "the plugin's socket is back")


def reboot(gpus: GpuNode) -> None:
    """Everything and every container ends at once; then all starts, our scheduler and plugin too."""
    gpus.plugin.kill()
    gpus.cluster.scheduler.process.kill()
    gpus.node.reboot()
    gpus.cluster.scheduler.process.start()
    gpus.cluster.scheduler.wait_ready()
    gpus.start_plugin()


OUTAGES = [
    Outage("kubelet killed and started", restart_kubelet),
    Outage("containerd killed and started", restart_containerd),
    Outage("device plugin killed and started", restart_plugin),
    Outage("scheduler killed and started", restart_scheduler),
    Outage("API server killed and started", restart_api_server),
    Outage("plugin's socket removed", remove_plugin_socket),
    Outage("socket folder recreated", recreate_socket_folder),
    Outage("reboot", reboot, spares=False),
]


@pytest.fixture
def tenant(gpus: GpuNode, space: Workspace) -> Iterator[Tenant]:
    """Three pods with shares that run."""
    made = Tenant(gpus, space)
    made.create(REPLICAS)
    yield made
    made.remove()


@pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.name.replace(" ", "-"))
def test_outage(gpus: GpuNode, tenant: Tenant, outage: Outage) -> None:
    before = tenant.look()
    started = time.monotonic()
    outage.strike(gpus)
    if not outage.spares:  # what the API says of the containers is from before, until kubelet has looked
        old = before.containers.items()
        wait_until(lambda: not old & tenant.look().containers.items(), 60, "kubelet noticed that all containers ended")
    tenant.scale(REPLICAS + 1)
    tenant.wait_running(REPLICAS + 1)
    seconds = time.monotonic() - started
    after = tenant.wait_spared(before) if outage.spares else tenant.look()
    kept = [name for name, container in before.containers.items() if after.containers.get(name) == container]
    table.note(outage.name, f"{len(kept)} of {REPLICAS} went on, {table.counted(after.failed)}", seconds)
    tenant.check()
    if after.failed:
        tenant.take_the_rest()


def test_frozen_plugin_holds_up_new_pods_until_it_answers(gpus: GpuNode, tenant: Tenant) -> None:
    """kubelet admits pods one after another, so it waits too: hence the deadline of our Allocate, and the probe."""
    before = tenant.look()
    gpus.plugin.signal(signal.SIGSTOP)
    try:
        tenant.scale(REPLICAS + 1)
        wait_until(lambda: kubelet.bytes_not_read(kubelet.PLUGIN_SOCKET), 60, "kubelet has asked the frozen plugin")
        assert tenant.wait_spared(before) == before
        started = time.monotonic()
    finally:
        gpus.plugin.signal(signal.SIGCONT)
    tenant.wait_running(REPLICAS + 1)
    seconds = time.monotonic() - started
    after = tenant.wait_spared(before)
    assert all("UnexpectedAdmissionError" in reason for reason in after.failed.values()), after.failed
    table.note("plugin frozen, then thawed", f"the new pod waited, {table.counted(after.failed)}", seconds)
    tenant.check()


@pytest.fixture
def proxy(gpus: GpuNode) -> Iterator[FaultProxy]:
    """The plugin's way to the API server leads through it."""
    between = gpus.cluster.plugin_proxy()
    between.start()
    gpus.lead_plugin_through(between)
    yield between
    gpus.plugin.kill()
    between.stop()
    gpus.lead_plugin_through(None)


@pytest.mark.parametrize("when", ["before", "after"])
def test_plugin_killed_around_its_patch_of_the_pod(
    gpus: GpuNode, tenant: Tenant, proxy: FaultProxy, when: When
) -> None:
    before = tenant.look()
    started = time.monotonic()
    proxy.add(Fault(when=when, method="PATCH", path=r"/pods/[^/]+$", callback=gpus.plugin.kill))
    tenant.scale(REPLICAS + 1)
    wait_until(lambda: not gpus.plugin.alive, 60, "the plugin is killed in the middle of an Allocate")
    gpus.start_plugin()
    tenant.wait_running(REPLICAS + 1)
    seconds = time.monotonic() - started
    after = tenant.wait_spared(before)
    assert all("UnexpectedAdmissionError" in reason for reason in after.failed.values()), after.failed
    table.note(f"plugin killed {when} it writes success", table.counted(after.failed), seconds)
    tenant.check()


def test_plugin_frozen_in_the_middle_of_an_allocate(gpus: GpuNode, tenant: Tenant, proxy: FaultProxy) -> None:
    """Longer than its own deadline: whether it then still says yes or refuses, nothing is half done."""
    before, goes_on = tenant.look(), threading.Event()

    def freeze() -> None:
        gpus.plugin.signal(signal.SIGSTOP)
        struck.append(time.monotonic())

    struck: list[float] = []
    proxy.add(Fault(method="PATCH", path=r"/pods/[^/]+$", callback=freeze, hold=goes_on))
    try:
        tenant.scale(REPLICAS + 1)
        wait_until(lambda: struck, 60, "the plugin is frozen in the middle of an Allocate")
        wait_until(lambda: time.monotonic() > struck[0] + ALLOCATE_DEADLINE_S + 1, 60, "the Allocate is overdue")
        started = time.monotonic()
    finally:
        gpus.plugin.signal(signal.SIGCONT)
        goes_on.set()
    tenant.wait_running(REPLICAS + 1)
    seconds = time.monotonic() - started
    after = tenant.wait_spared(before)
    assert all("UnexpectedAdmissionError" in reason for reason in after.failed.values()), after.failed
    table.note("plugin frozen within an Allocate, then thawed", table.counted(after.failed), seconds)
    tenant.check()
