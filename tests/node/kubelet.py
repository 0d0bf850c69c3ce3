"""The real kubelet of the node. Its device-plugins folder is a constant, hence the mount namespace of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import Process, wait_until
from tests.node import network
from tests.node.tools import Tools

ROOT = Path("/var/lib/kubelet")
DEVICE_PLUGINS = ROOT / "device-plugins"
CHECKPOINT = DEVICE_PLUGINS / "kubelet_internal_checkpoint"
PLUGIN_SOCKET = DEVICE_PLUGINS / "nvidia-gpu.sock"
"""Where our plugin offers shares."""
POD_RESOURCES = ROOT / "pod-resources/kubelet.sock"
PORT = 10250
READY_S = 60


def checkpointed_devices(resource: str) -> dict[tuple[str, str], list[str]]:
    """Device ids of one resource by the pod's uid and container, as kubelet's checkpoint has them."""
    held: dict[tuple[str, str], list[str]] = {}
    for entry in _checkpoint()["PodDeviceEntries"] or []:
        if entry["ResourceName"] == resource:  # ids are listed for each NUMA node
            held[entry["PodUID"], entry["ContainerName"]] = [one for ids in entry["DeviceIDs"].values() for one in ids]
    return held


def checkpointed_offer(resource: str) -> list[str]:
    """Device ids of one resource that the plugin offers, as kubelet's checkpoint has them."""
    return list(_checkpoint()["RegisteredDevices"].get(resource, []))


def bytes_not_read(socket: Path) -> int:
    """What peers wrote into connections to this Unix socket and its owner, frozen for instance, did not read yet."""
    lines = subprocess.run(["ss", "-xH"], capture_output=True, text=True, check=True).stdout.splitlines()
    # kind, state, received and not read, sent and not read, own address (with more slashes before it), ...
    return sum(int(fields[2]) for fields in map(str.split, lines) if fields[4].endswith(str(socket)))


def _checkpoint() -> dict[str, Any]:
    """The device manager's data; kubelet replaces the file whole."""
    data: dict[str, Any] = json.loads(CHECKPOINT.read_text())["Data"]
    return data


class Kubelet:
    """kubelet with the identity of one node. `restart_as_new` is what an upgrade of it does."""

    def __init__(self, plane: ControlPlane, tools: Tools, folder: Path, runtime_socket: Path, cgroup: str) -> None:
        self.name = "node1"
        self._plane = plane
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        pair = plane.authority.issue(f"kubelet-{self.name}", f"system:node:{self.name}", ["system:nodes"])
        kubeconfig = plane.kubeconfig(f"kubelet-{self.name}", pair)
        configuration = folder / "kubelet.json"
        configuration.write_text(json.dumps(self._configuration(runtime_socket, cgroup), indent=1))
        command: list[str | Path] = [
            plane.binaries.path("kubelet"),
            f"--config={configuration}",
            f"--kubeconfig={kubeconfig}",
        ]
        command += [f"--hostname-override={self.name}", f"--node-ip={network.NODE_ADDRESS}", f"--root-dir={ROOT}"]
        command += ["--node-labels=gpu=on", "-v=2"]
        self.process = Process("kubelet", command, plane.logs / "kubelet.log", tools.environment())

    @property
    def path(self) -> str:
        """The Node object."""
        return f"/api/v1/nodes/{self.name}"

    def start(self) -> None:
        """Start and return when the node is Ready, said by this process."""
        self.mount()
        before = self.last_ready()
        self.process.start()
        wait_until(lambda: self._said_ready_after(before), READY_S, f"node {self.name} Ready")

    def mount(self) -> None:
        """Put kubelet's folder on the run's disk: /var/lib is written to memory in here."""
        if not ROOT.is_mount():
            ROOT.mkdir(parents=True, exist_ok=True)
            own = self._folder / "root"
            own.mkdir(exist_ok=True)
            subprocess.run(["mount", "--bind", str(own), str(ROOT)], check=True)

    def last_ready(self) -> str:
        """When kubelet last said that the node is Ready; empty when it never did or says that it is not."""
        if not self._plane.api.exists(self.path):
            return ""
        conditions = self._plane.api.get(self.path)["status"].get("conditions", [])
        ready = [one for one in conditions if one["type"] == "Ready" and one["status"] == "True"]
        return str(ready[0]["lastHeartbeatTime"]) if ready else ""

    def recreate_device_plugins_folder(self) -> None:
        """Remove the folder with kubelet's and the plugins' sockets and make it anew, empty."""
        shutil.rmtree(DEVICE_PLUGINS)
        DEVICE_PLUGINS.mkdir(mode=0o750)

    def healthy(self) -> bool:
        """True while the process runs and serves."""
        return self.process.alive

    def _said_ready_after(self, before: str) -> bool:
        self.process.require_alive()
        return self.last_ready() > before

    def _configuration(self, runtime_socket: Path, cgroup: str) -> dict[str, object]:
        serving = self._plane.authority.issue(
            f"kubelet-serving-{self.name}", f"system:node:{self.name}", hosts=[self.name, network.NODE_ADDRESS]
        )
        authority = str(self._plane.authority.cert)
        resolver = self._folder / "resolv.conf"
        resolver.write_text("nameserver 127.0.0.1\n")
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": authority},
            },
            "authorization": {"mode": "Webhook"},
            "address": "0.0.0.0",
            "port": PORT,
            "tlsCertFile": str(serving.cert),
            "tlsPrivateKeyFile": str(serving.key),
            "containerRuntimeEndpoint": f"unix://{runtime_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroup}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "clusterDNS": [network.DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "resolvConf": str(resolver),
            # The disk is shared with others and may be nearly full; a collected image could not be pulled again.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "1s",
            "nodeStatusReportFrequency": "1s",
        }
