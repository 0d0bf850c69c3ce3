"""The cluster under the other tests is a real one: services by address and by name, logs, exec, labels of the node."""

from __future__ import annotations

from tests.cluster.pods import Workspace
from tests.cluster.processes import wait_until
from tests.node import dns, network
from tests.node.gpu import GpuNode, share_pod

API_SERVICE = "kubernetes.default.svc.cluster.local"


def test_pods_reach_services_by_address_and_name(gpus: GpuNode, space: Workspace) -> None:
    dns.deploy(gpus.node)
    space.add(share_pod("p", {}))
    space.wait_phase("p")

    def in_pod(script: str) -> str:
        return gpus.in_pod(space, "p", "sh", "-c", script)

    def resolved() -> bool:
        said = in_pod(f"nslookup {API_SERVICE} {network.DNS_ADDRESS}")
        assert "10.96.0.1" in said, said
        return True

    wait_until(resolved, 30, "a service's name is found in a pod")

    def reached() -> bool:
        said = in_pod("nc -w 5 10.96.0.1 443 </dev/null && echo reached")
        assert said.strip() == "reached", said
        return True

    wait_until(reached, 30, "a service is reached by its address")
    assert network.DNS_ADDRESS in in_pod("cat /etc/resolv.conf")
