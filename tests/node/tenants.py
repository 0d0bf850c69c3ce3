"""A Deployment that asks for shares: what a tenant has on the node while things break around it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tests.cluster.api import Object
from tests.cluster.pods import NODE_LOCK, Workspace, allocation
from tests.cluster.processes import wait_until
from tests.node.gpu import GpuNode, environment_of, share_pod
from tests.tools.audit import audit_cluster

LIMITS = {"gpu": 1, "gpumem": 3000, "gpucores": 10}
ENDED = ("Failed", "Succeeded")


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One look at the tenant: running containers by pod, pods that kubelet failed, and restarts of containers."""

    containers: Mapping[str, str]
    failed: Mapping[str, str]
    restarts: int


class Tenant:
    """Deployment `tenant` in the namespace of a test."""

    def __init__(self, gpus: GpuNode, space: Workspace) -> None:
        self._gpus = gpus
        self._space = space
        self._path = f"/apis/apps/v1/namespaces/{space.name}/deployments/tenant"

    def create(self, replicas: int) -> None:
        """Make it and wait until all of its pods run."""
        pod = share_pod("tenant", LIMITS)
        template = {"metadata": {"labels": {"app": "tenant"}}, "spec": pod["spec"]}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "tenant"}}, "template": template}
        deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "tenant"}, "spec": spec}
        self._gpus.node.plane.api.post(self._path.rpartition("/")[0], deployment)
        self.wait_running(replicas)

    def scale(self, replicas: int) -> None:
        """Ask for another number of pods."""
        self._gpus.node.plane.api.merge_patch(self._path, {"spec": {"replicas": replicas}})

    def remove(self) -> None:
        """Delete the Deployment; return when no controller makes pods any more."""
        api = self._gpus.node.plane.api
        api.delete(self._path, propagationPolicy="Foreground")
        wait_until(lambda: not api.exists(self._path), 60, "the tenant is gone")

    def wait_running(self, replicas: int, timeout_s: float = 150) -> None:
        """Return when so many pods are Ready, those that ended not counted, and no other is on its way."""

        def complete() -> bool:
            alive = [pod for pod in self._space.pods() if pod["status"]["phase"] not in ENDED]
            ready = [pod for pod in alive if is_ready(pod)]
            waiting = [pod["metadata"]["name"] for pod in alive if not is_ready(pod)]
            assert len(ready) == len(alive) == replicas, (
                f"{len(ready)} ready, waiting {waiting}: {self._space.events(waiting[0])[-3:] if waiting else ''}"
            )
            return True

        wait_until(complete, timeout_s, f"{replicas} pods of the tenant ready", interval_s=0.2)

    def look(self) -> Seen:
        """What there is now."""
        running, pods = self._pods(running=True), self._space.pods()
        return Seen(
            {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["containerID"] for pod in running},
            {
                pod["metadata"]["name"]: f"{pod['status'].get('reason')}: {pod['status'].get('message')}"
                for pod in pods
                if pod["status"]["phase"] == "Failed"
            },
            sum(pod["status"]["containerStatuses"][0]["restartCount"] for pod in running),
        )

    def wait_spared(self, before: Seen) -> Seen:
        """What there is now, once the containers of `before` are seen to go on: nobody restarted one.

        A pod may be called not ready for a moment, when kubelet has just started.
        """

        def spared() -> Seen:
            now = self.look()
            assert before.containers.items() <= now.containers.items(), (before, now)
            return now

        return wait_until(spared, 60, "the tenant's containers go on")

    def check(self, visible: str = "") -> None:
        """Cards are not exceeded, no token is left, and each container has the limits of its annotation.

        `visible`: what NVIDIA_VISIBLE_DEVICES is in each, where it does not name the card.
        """
        plane = self._gpus.node.plane
        wait_until(self._no_token, 30, "the node's token is free")
        assert audit_cluster(plane.admin_kubeconfig).faults == []
        for pod in self._pods(running=True):
            ((device,),) = allocation(pod)
            name = pod["metadata"]["name"]
            env = environment_of(self._gpus.in_pod(self._space, name, "env").splitlines())
            assert (env["NVIDIA_VISIBLE_DEVICES"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (
                visible or device.uuid,
                "3000m",
            )

    def take_the_rest(self) -> None:
        """Whatever nobody holds can be had, to the last MiB of each card: failed pods hold nothing."""
        report = audit_cluster(self._gpus.node.plane.admin_kubeconfig)
        for (_, uuid), card in report.cards.items():
            held = sum(holder.use.memory_mib for holder in report.holders.get((self._gpus.node.name, uuid), []))
            name = f"rest-{card.index}"
            wish = {"nvidia.com/use-gpuuuid": uuid}
            self._space.add(share_pod(name, {"gpu": 1, "gpumem": card.room.memory_mib - held}, annotations=wish))
            self._space.wait_phase(name)

    def _no_token(self) -> bool:
        node = self._gpus.node.plane.api.get(self._gpus.node.kubelet.path)
        return NODE_LOCK not in node["metadata"]["annotations"]

    def _pods(self, running: bool) -> list[Object]:
        return [pod for pod in self._space.pods() if is_ready(pod) == running]


def is_ready(pod: Object) -> bool:
    """True for a pod that runs and whose containers do."""
    conditions = pod["status"].get("conditions", [])
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and pod["status"]["phase"] == "Running"
