"""kube-proxy: service addresses work on the node and in its pods."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.api import ApiError
from tests.cluster.controlplane import ControlPlane
from tests.cluster.processes import Process
from tests.node import network
from tests.node.tools import Tools

HEALTH = "http://127.0.0.1:10256/healthz"
READY_S = 30
USER = "system:kube-proxy"


class KubeProxy:
    """kube-proxy in iptables mode."""

    def __init__(self, plane: ControlPlane, tools: Tools, node: str) -> None:
        self._plane = plane
        kubeconfig = plane.kubeconfig("kube-proxy", plane.authority.issue("kube-proxy", USER))
        configuration = plane.folder / "kube-proxy.json"
        configuration.write_text(
            json.dumps(
                {
                    "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
                    "kind": "KubeProxyConfiguration",
                    "mode": "iptables",
                    "clientConnection": {"kubeconfig": str(kubeconfig)},
                    "clusterCIDR": network.POD_CIDR,
                    "hostnameOverride": node,
                    "healthzBindAddress": "127.0.0.1:10256",
                    "metricsBindAddress": "127.0.0.1:10249",
                    "conntrack": {"maxPerCore": 0, "min": 0},
                    "iptables": {"minSyncPeriod": "100ms"},
                },
                indent=1,
            )
        )
        command: list[str | Path] = [plane.binaries.path("kube-proxy"), f"--config={configuration}"]
        self.process = Process("kube-proxy", command, plane.logs / "kube-proxy.log", tools.environment())

    def start(self) -> None:
        """Give it its role, start, and return when it is healthy."""
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "node-proxier"},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "ClusterRole",
                "name": "system:node-proxier",
            },
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": USER}],
        }
        try:
            self._plane.api.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
        except ApiError as error:
            if error.status != 409:  # it has its role already
                raise
        self.process.start()
        self._plane.wait_http(self.process, HEALTH, READY_S)
