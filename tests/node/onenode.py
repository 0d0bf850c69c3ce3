"""A real one-node Kubernetes: control plane, containerd, kubelet and kube-proxy, for tests that need pods to run.

It runs inside `python -m tests.node.namespace ...` only (as root), so nothing outlives the run. How to use it:

    node = OneNode(build.ensure(), tools.ensure(), folder)      # built beforehand (prepare.py): inside is no way out
    node.start()                                                # 8 s; Ready node `node1`, pods can reach services
    node.plane.kubectl("apply", "-f", "x.yaml")                 # as admin; KubectlError with kubectl's own words
    node.plane.admin_kubeconfig, node.plane.api                 # for other tools; for polling
    node.containerd.import_image(archive)                       # what `images.pack` or buildah wrote
    node.kubelet, node.containerd, node.proxy, node.plane.etcd  # each has `.process` with kill(), start(), restart()
    node.reboot()                                               # all at once, with every container; state on disk stays
    node.stop()

Images: `images.BUSYBOX` and the sandbox's image are there from the start; pods name them with imagePullPolicy
`IfNotPresent` or `Never`. `with_hami=False` leaves out the kube-scheduler that calls our extender on the host, and
the roles for our host processes: for clusters where the chart brings them.
`dns.deploy(node)` adds CoreDNS, for names of services in pods (`dns.build()` beforehand).
Addresses: `network.NODE_ADDRESS` is the node and the API server (port `plane.ports.apiserver`), 10.96.0.1 the API
server for pods. Flags and their reasons: spec/cluster.md 2, 3.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.cluster.build import Binaries
from tests.cluster.controlplane import ControlPlane, PodNetwork
from tests.cluster.processes import Process, wait_until
from tests.node import images, network, runtime
from tests.node.containerd import Containerd
from tests.node.kubelet import ROOT, Kubelet
from tests.node.kubeproxy import KubeProxy
from tests.node.namespace import cgroup
from tests.node.tools import Tools

PODS = PodNetwork(network.NODE_ADDRESS, network.SERVICE_CIDR, "10.96.0.1")
READY_S = 60


class OneNode:
    """One cluster of one node; `folder` holds all of its state and logs (`plane.logs`)."""

    def __init__(self, binaries: Binaries, tools: Tools, folder: Path, with_hami: bool = True) -> None:
        own_cgroup = cgroup()
        if own_cgroup is None:
            raise RuntimeError("a real node needs namespaces of its own: python -m tests.node.namespace COMMAND")
        self.folder = folder
        self.tools = tools
        self.plane = ControlPlane(binaries, folder, pods=PODS, with_hami=with_hami)
        self._cni_folder = folder / "cni"
        self.containerd = Containerd(runtime.build(), tools, folder / "containerd", self._cni_folder, images.PAUSE)
        self.kubelet = Kubelet(self.plane, tools, folder / "kubelet", self.containerd.socket, own_cgroup)
        self.proxy = KubeProxy(self.plane, tools, self.kubelet.name)

    @property
    def name(self) -> str:
        """The node's name."""
        return self.kubelet.name

    def start(self) -> None:
        """Start everything and return when the node takes pods. Also starts again what was stopped or killed."""
        network.set_up(self._cni_folder)
        self.plane.start()
        self.containerd.start()
        self._import_own_images()
        self.kubelet.start()
        self.proxy.start()
        self.wait_schedulable()

    def stop(self) -> None:
        """End everything, containers too, and release kubelet's mounts."""
        for process in (self.kubelet.process, self.proxy.process):
            process.kill()
        if self.containerd.process.alive:
            self.containerd.kill_containers()
            self.containerd.process.kill()
        self.plane.stop()
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in sorted((one for one in mounts if Path(one).is_relative_to(ROOT)), reverse=True):
            subprocess.run(["umount", "--lazy", mount], check=False)

    def reboot(self) -> None:
        """As if the power had failed: processes and containers end at once, then everything starts from disk."""
        for process in (self.kubelet.process, self.proxy.process):
            process.kill()
        self.containerd.kill_containers()
        self.containerd.process.kill()
        for process in self.plane.processes():
            process.kill()
        self.start()

    def processes(self) -> list[Process]:
        """Every process of the node and its control plane."""
        return [*self.plane.processes(), self.containerd.process, self.kubelet.process, self.proxy.process]

    def wait_schedulable(self) -> None:
        """Return when the node is Ready and carries no taint."""

        def schedulable() -> bool:
            self.kubelet.process.require_alive()
            node = self.plane.api.get(self.kubelet.path)
            assert not node["spec"].get("taints"), node["spec"]
            return bool(self.kubelet.last_ready())

        wait_until(schedulable, READY_S, f"node {self.name} schedulable")

    def _import_own_images(self) -> None:
        for image in (images.pause(self.tools.busybox), images.busybox(self.tools.busybox)):
            archive = self.folder / "images" / f"{image.name.partition('/')[2].replace(':', '-')}.tar"
            if not archive.exists():
                self.containerd.import_image(images.pack(image, archive))
