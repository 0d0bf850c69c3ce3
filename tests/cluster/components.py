"""Our own processes on the real control plane: the scheduler (extender and webhook) and GPU nodes.

A GPU node is two processes, as on a real one: a kubelet (the stand-in of `hami.sim`, which speaks the device-plugin
protocol over unix sockets and runs no containers) and the real `hami device-plugin` with simulated cards.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.cluster.api import ApiError, Object
from tests.cluster.controlplane import MANIFESTS, SCHEDULER_NAME, ControlPlane
from tests.cluster.kubelets import KubeletSpec, NodeSpec
from tests.cluster.pki import Pair
from tests.cluster.pods import allocation, gpu_pod
from tests.cluster.processes import PATIENCE_S, Process, wait_until
from tests.tools.proxy import FaultProxy
from tests.tools.proxy_faults import Fault

HAMI = Path(sys.executable).parent / "hami"
REGISTER = "hami.io/node-nvidia-register"
PROFILES = Path(__file__).parent / "profiles"
CARDS_ENV = "NVIDIA_VISIBLE_DEVICES"
RECORD = "allocations.jsonl"
COUNT_RESOURCE = "nvidia.com/gpu"
BIND_MARGIN_S = 5
"""How much earlier than kube-scheduler a bind gives up; the chart derives it so."""


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerLimits:
    """Cards and limits of one container: MiB for each card, cores as the percentage of the first."""

    cards: tuple[str, ...]
    memory_mib: tuple[int, ...]
    cores: int


class HamiScheduler:
    """`hami scheduler` as extender and webhook, reached through a fault proxy on its way to kube-apiserver."""

    def __init__(
        self,
        plane: ControlPlane,
        extra_flags: Sequence[str] = (),
        name: str = "hami-scheduler",
        port: int = 0,
        *,
        proxied: bool = True,
    ) -> None:
        """`name` tells replicas apart; `port` is where this one listens, by default where the webhook leads to.
        Without `proxied` it speaks to kube-apiserver directly and by token, as in a pod: where speed is measured."""
        self._plane = plane
        self.name = name
        self.url = f"https://127.0.0.1:{port or plane.ports.extender}"
        self.certificates = plane.folder / "webhook-certs"
        pair = plane.service_account_pair("hami-scheduler")
        self.proxy = fault_proxy(plane, pair)
        self._proxied = proxied
        self._pair = pair
        self._extra_flags = list(extra_flags)
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The running (or killed) process."""
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> None:
        """Start the proxy and the process; return when it says that it is ready."""
        self.make_certificates()
        self.proxy.start()
        kubeconfig = self._write_kubeconfig()
        address = self.url.removeprefix("https://")
        command = [HAMI, "scheduler", "--kubeconfig", kubeconfig, "--http_bind", address]
        command += ["--cert_file", self.certificates / "tls.crt", "--key_file", self.certificates / "tls.key"]
        command += ["--scheduler-name", SCHEDULER_NAME, "--metrics-bind-address", "127.0.0.1:0"]
        bind_wait = f"{self._plane.bind_timeout_s - BIND_MARGIN_S}s"
        command += ["--node-lock-retry-timeout", bind_wait, "--device-config-file", MANIFESTS / "device-config.yaml"]
        command += ["-v=3", *self._extra_flags]
        log = self._plane.logs / ("hami.log" if self.name == "hami-scheduler" else f"{self.name}.log")
        self._process = Process(self.name, [str(part) for part in command], log)
        self._process.start()
        self.wait_ready()

    def make_certificates(self) -> None:
        """The serving certificate, which replicas share."""
        if not self.certificates.exists():
            command = [HAMI, "certs", "create", "--host", "127.0.0.1", "--out", self.certificates]
            subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=PATIENCE_S)

    def start_to_be_killed(self, faults: Sequence[Fault]) -> None:
        """Start the process anew with these faults armed from its first moment, the first of them as its kill.

        It has a port of the proxy to itself: a request of the last process, or an answer to it, may still be on its
        way, and would strike the fault while there is nobody to kill.
        """
        self.process.kill()
        self.proxy.listen_anew()
        self._write_kubeconfig()
        faults[0].callback = self.process.kill
        for fault in faults:
            self.proxy.add(fault)
        self.process.start()

    def _write_kubeconfig(self) -> Path:
        """Always the same file, with the way to kube-apiserver in it."""
        if not self._proxied:
            return self._plane.kubeconfig(self.name, self._plane.service_account_token("hami-scheduler"))
        return self._plane.kubeconfig(self.name, self._pair, server=self.proxy.url)

    def wait_ready(self) -> None:
        """Return when `/readyz` says 200: synced with the API server."""
        self._plane.wait_http(self.process, f"{self.url}/readyz", PATIENCE_S)

    def stop(self) -> None:
        """Kill the process and end its proxy."""
        if self._process is not None:
            self._process.kill()
            self.proxy.stop()

    def log_tail(self, lines: int) -> str:
        """The last lines of the process's log; empty before its start."""
        return self._process.tail(lines) if self._process is not None else ""

    def install_webhook(self) -> None:
        """Register the webhook with kube-apiserver; returns when that asks it."""
        manifest = str(self._plane.webhook_manifest(self.certificates / "ca.crt"))
        wait_until(lambda: self._plane.kubectl("apply", "-f", manifest), PATIENCE_S, "the webhook's configuration")
        wait_until(lambda: self._admitted_for() == SCHEDULER_NAME, PATIENCE_S, "the webhook is asked")

    def remove_webhook(self) -> None:
        """Take the webhook away, as if it had never been installed; returns when kube-apiserver has forgotten it."""
        self._plane.kubectl("delete", "mutatingwebhookconfiguration", "hami-webhook", "--ignore-not-found")
        wait_until(lambda: self._admitted_for() != SCHEDULER_NAME, PATIENCE_S, "the webhook is forgotten")

    def _admitted_for(self) -> str:
        """The scheduler that a pod with a share would be given now. Raises ApiError where it would be refused."""
        path = "/api/v1/namespaces/default/pods?dryRun=All"
        return str(self._plane.api.post(path, gpu_pod("asked", {"gpu": 1}))["spec"]["schedulerName"])


@dataclasses.dataclass(slots=True)
class GpuNode:
    """One node: our device plugin, and the process that holds its kubelet stand-in (and that of its neighbours)."""

    name: str
    profile: str
    folder: Path
    kubelet: Process
    plugin: Process

    @property
    def kubelet_dir(self) -> Path:
        """The kubelet's device-plugins folder (stand-in for /var/lib/kubelet/device-plugins)."""
        return self.folder / "device-plugins"

    def allocations(self) -> list[dict[str, Any]]:
        """Answers of Allocate that the kubelet recorded: pod_uid, container, envs."""
        record = self.folder / RECORD
        return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


class Cluster:
    """A control plane with our scheduler and GPU nodes: what a cluster administrator would have installed."""

    def __init__(self, plane: ControlPlane, scheduler_flags: Sequence[str] = ()) -> None:
        self.plane = plane
        self.api = plane.api
        self.kubectl = plane.kubectl
        self.scheduler = HamiScheduler(plane, scheduler_flags)
        self.nodes: dict[str, GpuNode] = {}
        self._plugin_pair = plane.service_account_pair("hami-device-plugin")
        self._plugin_kubeconfig = plane.kubeconfig("hami-device-plugin", self._plugin_pair)

    def start(self) -> None:
        """Start the control plane, the scheduler and its webhook."""
        self.plane.start()
        self.scheduler.start()
        self.scheduler.install_webhook()

    def stop(self) -> None:
        """Kill everything that was started, ours first."""
        for node in self.nodes.values():
            node.plugin.kill()
            node.kubelet.kill()
        self.scheduler.stop()
        self.plane.stop()

    def processes(self) -> list[Process]:
        """Everything but the nodes' processes."""
        return [*self.plane.processes(), self.scheduler.process]

    def log_tail(self, lines: int) -> str:
        """The end of our scheduler's log, for failure reports."""
        return self.scheduler.log_tail(lines)

    def add_nodes(self, profiles: Sequence[str], config: Sequence[dict[str, Any]] = ()) -> list[GpuNode]:
        """Start a node for each profile and return when all are Ready with registered cards.

        `config` holds extra entries of config.json's `nodeconfig`, merged by node name.
        """
        first = len(self.nodes)
        names = [f"node-{first + index:02d}" for index in range(len(profiles))]
        kubelets = self._kubelets(names)
        added = [self._node(name, profile, kubelets, config) for name, profile in zip(names, profiles, strict=True)]
        self.nodes |= {node.name: node for node in added}
        kubelets.start()
        for node in added:
            node.plugin.start()
        for node in added:
            self.wait_node(node)
        return added

    def wait_node(self, node: GpuNode) -> None:
        """Return when the node is Ready and schedulable, advertises shares and has its cards registered."""

        def ready() -> bool:
            node.kubelet.require_alive()
            node.plugin.require_alive()
            return self.node_is_ready(node.name)

        wait_until(ready, PATIENCE_S, f"node {node.name} ready with cards")

    def end_plugin(self, node: GpuNode) -> None:
        """Kill a node's plugin and return when that shows: a new one is waited for in vain where its predecessor still
        counts, and pods that come between the two fail."""
        node.plugin.kill()
        wait_until(lambda: not self.node_is_ready(node.name), PATIENCE_S, f"the plugin of {node.name} is missed")

    def node_is_ready(self, name: str) -> bool:
        """One look: Ready condition, no taints, allocatable shares, register annotation."""
        try:
            found = self.api.get(f"/api/v1/nodes/{name}")
        except ApiError:
            return False
        status = found.get("status", {})
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", []))
        shares = int(status.get("allocatable", {}).get(COUNT_RESOURCE, "0"))
        registered = bool((found["metadata"].get("annotations") or {}).get(REGISTER))
        return ready and not found["spec"].get("taints") and shares > 0 and registered

    def granted_limits(self, pod: Object) -> dict[str, ContainerLimits]:
        """What the scheduler wrote for each container that holds a share, by container name."""
        names = [one["name"] for kind in ("initContainers", "containers") for one in pod["spec"].get(kind) or []]
        granted = {}
        for name, devices in zip(names, allocation(pod), strict=True):
            if devices:
                memory = tuple(one.memory_mib for one in devices)
                granted[name] = ContainerLimits(tuple(one.uuid for one in devices), memory, devices[0].cores)
        return granted

    def given_limits(self, pod: Object) -> dict[str, ContainerLimits]:
        """What the device plugin answered for each container, as the kubelet of the pod's node recorded it."""
        given = {}
        for record in self.nodes[pod["spec"]["nodeName"]].allocations():
            envs = record["envs"]
            if record["pod_uid"] == pod["metadata"]["uid"] and CARDS_ENV in envs:
                cards = tuple(envs[CARDS_ENV].split(","))
                limits = [envs[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"] for index in range(len(cards))]
                memory = tuple(int(limit.removesuffix("m")) for limit in limits)
                given[record["container"]] = ContainerLimits(cards, memory, int(envs["CUDA_DEVICE_SM_LIMIT"]))
        return given

    def plugin_process(self, node: GpuNode, kubeconfig: Path) -> Process:
        """The device plugin of a node with another kubeconfig (one that leads through a fault proxy)."""
        return self._plugin(node.name, node.profile, node.folder, kubeconfig)

    def plugin_proxy(self) -> FaultProxy:
        """A proxy that forwards with the device plugin's identity; start it, then write its kubeconfig."""
        return fault_proxy(self.plane, self._plugin_pair)

    def plugin_kubeconfig(self, proxy: FaultProxy) -> Path:
        """A kubeconfig of the device plugin that leads through the proxy."""
        return self.plane.kubeconfig("hami-device-plugin-proxied", self._plugin_pair, server=proxy.url)

    def _node(self, name: str, profile: str, kubelet: Process, config: Sequence[dict[str, Any]]) -> GpuNode:
        folder = self.plane.folder / name
        for part in ("device-plugins", "hook", "cdi", "lock"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        entry: dict[str, Any] = {"name": name, **node_entry(profile)}
        for extra in config:
            entry |= extra if extra.get("name", name) == name else {}
        (folder / "config.json").write_text(json.dumps({"nodeconfig": [entry]}))
        return GpuNode(name, profile, folder, kubelet, self._plugin(name, profile, folder, self._plugin_kubeconfig))

    def _kubelets(self, names: Sequence[str]) -> Process:
        """One process with the kubelet stand-ins of these nodes, each with its node's identity."""
        specs = []
        for name in names:
            pair = self.plane.authority.issue(f"kubelet-{name}", f"system:node:{name}", ["system:nodes"])
            folder = self.plane.folder / name
            device_plugins, record = str(folder / "device-plugins"), str(folder / RECORD)
            specs.append(NodeSpec(name, str(pair.cert), str(pair.key), device_plugins, record))
        spec = self.plane.folder / f"kubelets-{names[0]}.json"
        KubeletSpec(self.plane.server, str(self.plane.authority.cert), specs).write(spec)
        command = [sys.executable, "-m", "tests.cluster.kubelets", str(spec)]
        return Process(f"kubelets-{names[0]}", command, self.plane.logs / f"kubelets-{names[0]}.log")

    def _plugin(self, name: str, profile: str, folder: Path, kubeconfig: Path) -> Process:
        command = [HAMI, "device-plugin", "--kubeconfig", kubeconfig, "--node-name", name, "-v=3"]
        command += ["--device-config-file", MANIFESTS / "device-config.yaml"]
        command += ["--node-config-file", folder / "config.json", "--kubelet-dir", folder / "device-plugins"]
        command += ["--hook-path", folder / "hook", "--cdi-root", folder / "cdi", "--lock-dir", folder / "lock"]
        own = PROFILES / f"{profile}.yaml"
        command += ["--nvml", f"sim:{own if own.exists() else profile}"]
        return Process(f"plugin-{name}", [str(part) for part in command], self.plane.logs / f"{name}-plugin.log")


def node_entry(profile: str) -> dict[str, Any]:
    """What config.json says of a node with this profile, beside its name: `<profile>.json` beside the profile."""
    path = PROFILES / f"{profile}.json"
    entry: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return entry


def fault_proxy(plane: ControlPlane, pair: Pair) -> FaultProxy:
    """A proxy before this cluster's API server that forwards with the identity of `pair`."""
    serving = plane.authority.issue(f"proxy-{pair.cert.stem}", "kube-apiserver", hosts=["127.0.0.1"])
    return FaultProxy(plane.server, plane.authority.cert, (serving.cert, serving.key), (pair.cert, pair.key))
