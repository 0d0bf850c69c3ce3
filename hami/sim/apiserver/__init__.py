"""API server stand-in: HTTP, storage, admission and watch of kube-apiserver for the kinds that our processes use."""

from hami.sim.apiserver.faults import Fault, Faults
from hami.sim.apiserver.server import ApiServer

__all__ = ["ApiServer", "Fault", "Faults"]
