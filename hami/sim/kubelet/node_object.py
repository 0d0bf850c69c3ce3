"""The Node object and the lease that a kubelet keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hami.sim.objects import Obj, micro_timestamp, timestamp

VERSION: Final = "v1.34.4"
LEASE_SECONDS: Final = 40


def new_node(name: str, labels: Mapping[str, str], annotations: Mapping[str, str]) -> Obj:
    """Metadata of a node that registers for the first time."""
    own = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {**own, **labels}, "annotations": dict(annotations)},
        "spec": {},
    }


def node_status(base: Mapping[str, str], devices: Mapping[str, tuple[int, int]]) -> Obj:
    """Status with the machine's own resources and the device plugins' (capacity, allocatable)."""
    now = timestamp()
    quiet = {"MemoryPressure": "False", "DiskPressure": "False", "PIDPressure": "False", "Ready": "True"}
    return {
        "capacity": {**base, **{name: str(pair[0]) for name, pair in devices.items()}},
        "allocatable": {**base, **{name: str(pair[1]) for name, pair in devices.items()}},
        "conditions": [
            {
                "type": kind,
                "status": value,
                "reason": "KubeletReady" if kind == "Ready" else f"KubeletHasNo{kind}",
                "message": "kubelet is posting ready status" if kind == "Ready" else "",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
            for kind, value in quiet.items()
        ],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "nodeInfo": {
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "containerRuntimeVersion": "sim://1",
            "osImage": "hami-sim",
            "operatingSystem": "linux",
            "architecture": "amd64",
            "kernelVersion": "",
            "machineID": "",
            "systemUUID": "",
            "bootID": "",
        },
    }


def lease(name: str) -> Obj:
    """The node's heartbeat."""
    return {
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": micro_timestamp()},
    }
