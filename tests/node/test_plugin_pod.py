"""The device plugin as a DaemonSet, as a chart runs it: an image, kubelet's folder mounted, an account of its own.

The image is packed from this machine's Python without a registry.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster.api import Object
from tests.cluster.controlplane import MANIFESTS, SYSTEM_NAMESPACE
from tests.cluster.pods import Workspace
from tests.cluster.processes import wait_until
from tests.node import images, kubelet, pythonimage
from tests.node.gpu import CONTAINER_HOOK, GpuNode
from tests.node.tenants import Tenant, is_ready

DAEMON_SETS = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets"
PODS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods"
READY_S = 60


def daemon_set(gpus: GpuNode) -> Object:
    """The plugin with the paths of the process on the host; what it reads and writes there is mounted."""
    folder = str(gpus.node.folder / "gpu")
    config = str(MANIFESTS / "device-config.yaml")
    arguments = ["device-plugin", f"--device-config-file={config}", "--node-config-file=", "--metrics-bind-address="]
    arguments += [f"--hook-path={gpus.host.hook_path}", f"--container-hook-path={CONTAINER_HOOK}"]
    arguments += [f"--lock-dir={folder}/lock", f"--cdi-root={folder}/cdi", "--pass-device-specs"]
    arguments += [f"--dev-root={gpus.dev_root}", f"--nvml=sim:{gpus.host.profile_file}"]
    places = {"kubelet": str(kubelet.DEVICE_PLUGINS), "gpu": folder, "config": str(MANIFESTS)}
    container = {
        "name": "device-plugin",
        "image": pythonimage.NAME,
        "imagePullPolicy": "Never",
        "command": pythonimage.command(),
        "args": arguments,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "volumeMounts": [{"name": name, "mountPath": path} for name, path in places.items()],
    }
    spec = {
        "serviceAccountName": "hami-device-plugin",
        "terminationGracePeriodSeconds": 5,
        "containers": [container],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in places.items()],
    }
    labels = {"app": "hami-device-plugin"}
    template = {"metadata": {"labels": labels}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "hami-device-plugin"},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }


@pytest.fixture(scope="module")
def as_pod(gpus: GpuNode) -> Iterator[None]:
    """The plugin's pod serves instead of the process on the host."""
    api = gpus.node.plane.api
    archive = gpus.node.folder / "images/hami-python.tar"
    gpus.node.containerd.import_image(images.pack(pythonimage.image(), archive))
    gpus.plugin.stop()
    wait_until(lambda: gpus.offered() == 0, READY_S, "kubelet noticed that the host's plugin is gone")
    api.post(DAEMON_SETS, daemon_set(gpus))
    wait_plugin_pod(gpus)
    wait_until(lambda: gpus.offered() == 10 * gpus.card_count, READY_S, "kubelet has the shares of the plugin's pod")
    yield
    api.delete(f"{DAEMON_SETS}/hami-device-plugin", propagationPolicy="Foreground")
    wait_until(lambda: not api.items(PODS), READY_S, "the plugin's pod is gone")
    gpus.start_plugin()


def wait_plugin_pod(gpus: GpuNode, other_than: str = "") -> str:
    """Name of the plugin's pod, once it is ready."""

    def ready() -> str:
        pods = [pod for pod in gpus.node.plane.api.items(PODS) if pod["metadata"]["name"] != other_than]
        assert pods, "no pod yet"
        assert is_ready(pods[0]), json.dumps(pods[0]["status"])[:1500]
        return str(pods[0]["metadata"]["name"])

    return wait_until(ready, READY_S, "the plugin's pod is ready")


@pytest.mark.usefixtures("as_pod")
def test_plugin_as_a_pod_serves_shares(gpus: GpuNode, space: Workspace) -> None:
    tenant = Tenant(gpus, space)
    tenant.create(2)
    tenant.check()
    name = wait_plugin_pod(gpus)
    log = wait_until(lambda: gpus.node.plane.kubectl("logs", name, "-n", SYSTEM_NAMESPACE), READY_S, "its log")
    assert "Traceback" not in log
    tenant.remove()


@pytest.mark.usefixtures("as_pod")
def test_plugin_pod_deleted_is_replaced_and_tenants_go_on(gpus: GpuNode, space: Workspace) -> None:
    tenant = Tenant(gpus, space)
    tenant.create(2)
    before = tenant.look()
    old = wait_plugin_pod(gpus)
    gpus.node.plane.kubectl("delete", "pod", old, "-n", SYSTEM_NAMESPACE)
    wait_plugin_pod(gpus, other_than=old)
    tenant.scale(3)
    tenant.wait_running(3)
    tenant.wait_spared(before)
    tenant.check()
    tenant.remove()
