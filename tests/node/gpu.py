"""GPUs on the real node: simulated cards, the limiter on the host, our scheduler and our device plugin.

The plugin is a process on the host here, with the paths that a DaemonSet would give it: kubelet's own device-plugins
folder, a hook path, a lock folder, and a folder with device nodes. The same cards are described to the stand-in
driver that programs in containers load, so that what the plugin says about a card is true for them.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hami.sim import profiles
from hami.sim.containers import rootfs
from hami.sim.containers.host import NodeHost
from hami.sim.containers.toolkit import Toolkit
from tests.cluster.api import Object
from tests.cluster.components import COUNT_RESOURCE, HAMI, PROFILES, REGISTER, Cluster
from tests.cluster.controlplane import MANIFESTS, KubectlError
from tests.cluster.pods import VENDOR, Limits, Workspace, annotation, gpu_pod
from tests.cluster.processes import Process, wait_until
from tests.node import containerd, images, kubelet
from tests.node.onenode import OneNode
from tests.node.podresources import offered_devices
from tests.tools.proxy import FaultProxy

PROFILE = PROFILES / "a100x4.yaml"
READY_S = 60
CONTROL_NODES = {"nvidiactl": (1, 3), "nvidia-uvm": (1, 3), "nvidia-modeset": (195, 254)}
"""By name: device numbers. That of nvidia-modeset is the real one, and no container may open it without being told;
the others are the null device, which all may."""
MOST_CARDS = 16
CONTAINER_HOOK = "/usr/local"
GUEST = "localhost/gpu-guest:1"
"""Image with a program that takes GPU memory (`rootfs.GUEST`) and the stand-in driver's libraries."""
TOLD = "all-told"
TELL = f"env; echo {TOLD}; exec sleep 2147483647"
COMMAND_FAILED = "command terminated with exit code"
USUAL_FLAGS = ("--pass-device-specs",)


class GpuNode:
    """Our software on a started `OneNode`: `scheduler` and `plugin` processes, and what they leave on the host."""

    def __init__(self, node: OneNode, kit: Toolkit) -> None:
        self.node = node
        self.kit = kit
        self.cluster = Cluster(node.plane)
        self.host = NodeHost(node.folder / "gpu", node.name, profiles.load(str(PROFILE)))
        self.host.install(kit, CONTAINER_HOOK)
        self.dev_root = node.folder / "gpu"
        self.plugin = self._plugin_process(self._kubeconfig())

    def start(self) -> None:
        """Start scheduler, webhook and plugin; return when the node has its cards."""
        make_device_nodes(self.dev_root / "dev", MOST_CARDS)
        self.node.containerd.import_image(images.pack(guest_image(self.kit, self.node), self._archive(GUEST)))
        self.cluster.scheduler.start()
        self.cluster.scheduler.install_webhook()
        self.start_plugin()

    def start_plugin(self) -> None:
        """Start the plugin and return when kubelet has its devices and the node its cards."""
        wait_until(lambda: self.offered() == 0, READY_S, "kubelet noticed that the former plugin is gone")
        self.plugin.start()
        self.wait_cards()

    def wait_cards(self) -> None:
        """Return when the node is Ready, offers shares and has its cards registered."""

        def ready() -> bool:
            self.plugin.require_alive()
            return self.offered() > 0 and self.cluster.node_is_ready(self.node.name)

        wait_until(ready, READY_S, f"node {self.node.name} with cards")

    def stop(self) -> None:
        """Kill plugin and scheduler."""
        self.plugin.kill()
        self.cluster.scheduler.stop()

    @property
    def card_count(self) -> int:
        """How many cards the machine has."""
        return sum(kind.count for kind in self.host.profile.cards)

    def replace_plugin(
        self,
        profile: Path | None = None,
        node_config: Mapping[str, Any] | None = None,
        flags: Sequence[str | Path] = USUAL_FLAGS,
        wait: bool = True,
    ) -> None:
        """Start a plugin with other cards, an entry of config.json or flags; `restore_plugin` takes it back.

        Without `wait` it may offer something else than shares.
        """
        config = self.node.folder / "gpu/config.json"
        config.write_text(json.dumps({"nodeconfig": [{"name": self.node.name, **(node_config or {})}]}))
        self.plugin.kill()
        self.plugin = self._plugin_process(self._kubeconfig(), profile, config, flags)
        if wait:
            self.start_plugin()
        else:
            self.plugin.start()

    def restore_plugin(self) -> None:
        """The usual plugin, however another one left the node."""
        self.lead_plugin_through(None)

    def lead_plugin_through(self, proxy: FaultProxy | None) -> None:
        """Start the plugin anew so that its calls pass a fault proxy; None: directly again."""
        self.plugin.kill()
        kubeconfig = self._kubeconfig() if proxy is None else self.cluster.plugin_kubeconfig(proxy)
        self.plugin = self._plugin_process(kubeconfig)
        self.start_plugin()

    def offered(self) -> int:
        """How many shares kubelet would give out at this moment."""
        return len(offered_devices(kubelet.POD_RESOURCES, COUNT_RESOURCE))

    def shares(self) -> int:
        """How many shares the Node object says that pods can have here; it lags behind `offered`."""
        return self.allocatable().get(COUNT_RESOURCE, 0)

    def allocatable(self) -> dict[str, int]:
        """What the Node object says that pods can have of each of our resources; those without any left out."""
        status = self.node.plane.api.get(self.node.kubelet.path)["status"]
        found = {key: int(number) for key, number in status["allocatable"].items() if key.startswith(f"{VENDOR}/")}
        return {key: number for key, number in found.items() if number}

    def registered(self) -> list[dict[str, Any]]:
        """Cards in the node's register annotation."""
        node = self.node.plane.api.get(self.node.kubelet.path)
        cards: list[dict[str, Any]] = json.loads(annotation(node, REGISTER) or "[]")
        return cards

    def environment(self, space: Workspace, pod: str, container: str = "c0") -> dict[str, str]:
        """What a container of `share_pod` was started with, once it has told: logs come after the phase."""

        def told() -> list[str]:
            said = self.node.plane.kubectl("logs", pod, "-c", container, "-n", space.name, check=False).splitlines()
            assert TOLD in said, said
            return said

        return environment_of(wait_until(told, READY_S, f"{pod}'s {container} told its environment"))

    def in_pod(self, space: Workspace, pod: str, *command: str, container: str = "c0") -> str:
        """What a command in a container writes, or complains of where it fails. Tried again where it was not run."""

        def said() -> list[str]:
            try:
                return [self.node.plane.kubectl("exec", pod, "-n", space.name, "-c", container, "--", *command)]
            except KubectlError as error:
                if COMMAND_FAILED in error.stderr:
                    return [error.stderr]
                raise

        return wait_until(said, READY_S, f"{command} is run in {pod}")[0]

    def _kubeconfig(self) -> Path:
        return self.node.plane.folder / "hami-device-plugin.kubeconfig"

    def _plugin_process(
        self,
        kubeconfig: Path,
        profile: Path | None = None,
        config: Path | str = "",
        flags: Sequence[str | Path] = USUAL_FLAGS,
    ) -> Process:
        command: list[str | Path] = [HAMI, "device-plugin", "--kubeconfig", kubeconfig]
        command += ["--node-name", self.node.name, "--device-config-file", MANIFESTS / "device-config.yaml"]
        command += ["--node-config-file", config, "--metrics-bind-address", "", "-v=3"]
        command += ["--hook-path", self.host.hook_path, "--container-hook-path", CONTAINER_HOOK]
        command += ["--lock-dir", self.node.folder / "gpu/lock", "--cdi-root", containerd.CDI_FOLDER]
        command += ["--dev-root", self.dev_root, "--nvml", f"sim:{profile or self.host.profile_file}"]
        command += flags
        return Process("device-plugin", command, self.node.plane.logs / "device-plugin.log")

    def _archive(self, image: str) -> Path:
        return self.node.folder / "images" / f"{image.partition('/')[2].replace(':', '-')}.tar"


def make_device_nodes(folder: Path, cards: int) -> None:
    """Character devices with the names of NVIDIA's; the cards are the null device."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, number in (CONTROL_NODES | {f"nvidia{minor}": (1, 3) for minor in range(cards)}).items():
        if not (folder / name).exists():
            os.mknod(folder / name, stat.S_IFCHR | 0o666, os.makedev(*number))
            (folder / name).chmod(0o666)


def guest_image(kit: Toolkit, node: OneNode) -> images.Image:
    """Shell, `gpu-fill`, and the stand-in driver where programs look for a driver."""
    guest = kit.programs / "gpu-fill"
    libraries = sorted(kit.driver.glob("*.so.1"))
    files = images.with_libraries([guest, kit.shim, *libraries])
    files[rootfs.GUEST] = guest
    folder = Path(next(path for path in files if path.endswith("/libc.so.6"))).parent
    files |= {str(folder / library.name): library for library in libraries}
    shell = images.busybox(node.tools.busybox)
    return images.Image(GUEST, files | dict(shell.files), shell.links, images.FOREVER)


def may_open(gpus: GpuNode, space: Workspace, pod: str) -> bool:
    """Whether the device's number is allowed in the pod's first container, beside its node being there.

    No driver serves it here, so that an allowed one is said not to exist.
    """
    said = gpus.in_pod(space, pod, "cat", "/dev/nvidia-modeset")
    assert ("No such device or address" in said) != ("Operation not permitted" in said), said
    return "Operation not permitted" not in said


def share_pod(name: str, *containers: Limits, script: str = TELL, image: str = images.BUSYBOX, **more: Any) -> Object:
    """A pod of `gpu_pod` whose containers run a shell script in one of our images."""
    pod = gpu_pod(name, *containers, **more)
    for kind in ("containers", "initContainers"):
        for container in pod["spec"][kind]:
            container |= {"image": image, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script]}
    for container in pod["spec"]["initContainers"]:
        container["command"] = ["/bin/sh", "-c", f"env; echo {TOLD}"]
    return pod


def with_driver(pod: Object, host: NodeHost) -> Object:
    """The pod with the machine's cards and processes where the stand-in driver looks for them."""
    places = {"cards": (str(host.cards), rootfs.CARDS_FOLDER), "machine": ("/proc", rootfs.MACHINE_PROC)}
    pod["spec"]["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, (path, _) in places.items()]
    mounts = [{"name": name, "mountPath": inside} for name, (_, inside) in places.items()]
    for container in pod["spec"]["containers"]:
        container["volumeMounts"] = mounts
    return pod


def environment_of(lines: Sequence[str]) -> dict[str, str]:
    """What `env` printed."""
    return dict(line.partition("=")[::2] for line in lines if "=" in line)
