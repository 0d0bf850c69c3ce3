"""Kubelet stand-in: device-plugin gRPC for real, containers simulated (or run by a runner that the caller gives)."""

from hami.sim.kubelet.allocation import Allocation
from hami.sim.kubelet.kubelet import Kubelet, KubeletConfig
from hami.sim.kubelet.runner import ContainerRunner, ContainerStart, SimulatedRunner

__all__ = ["Allocation", "ContainerRunner", "ContainerStart", "Kubelet", "KubeletConfig", "SimulatedRunner"]
