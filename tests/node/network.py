"""The node's network: a bridge for pods that is the node's own address, and the CNI configuration for it.

kube-apiserver may not advertise a loopback address and the kernel may lack dummy links, so the pod bridge's address
serves as the node's. Everything lives in the network namespace that `tests.node.namespace` made.
Source: spec/cluster.md 2.
"""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

BRIDGE = "cni0"
NODE_ADDRESS = "10.244.0.1"
POD_CIDR = "10.244.0.0/24"
SERVICE_CIDR = "10.96.0.0/16"
DNS_ADDRESS = "10.96.0.10"
SYSCTLS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/route_localnet": "1",
    "fs/inotify/max_user_instances": "1024",
}


def set_up(cni_folder: Path) -> None:
    """Make the bridge (once) and write the CNI configuration into `cni_folder`."""
    if BRIDGE not in (name for _, name in socket.if_nameindex()):  # /sys shows another namespace's links
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("address", "add", f"{NODE_ADDRESS}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        _ip("route", "add", "default", "dev", BRIDGE)  # without any route service addresses are unreachable
    for name, value in SYSCTLS.items():
        file = Path("/proc/sys") / name
        if file.read_text().strip() != value and not _larger(file, value):
            file.write_text(value)
    cni_folder.mkdir(parents=True, exist_ok=True)
    (cni_folder / "10-pods.conflist").write_text(json.dumps(_cni_configuration(cni_folder / "leases"), indent=1))


def _cni_configuration(leases: Path) -> dict[str, object]:
    ipam = {
        "type": "host-local",
        "dataDir": str(leases),
        "ranges": [[{"subnet": POD_CIDR, "gateway": NODE_ADDRESS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": ipam}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def _larger(file: Path, value: str) -> bool:
    return int(file.read_text()) > int(value)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
